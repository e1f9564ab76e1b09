"""The style of all pages: one column, system fonts, light and dark.

Colours are those of Okabe and Ito (2008), which colour-blind people tell apart; in the dark, blue gives way to their
sky blue. No meaning hangs on a colour alone: lines differ in their dashes, points in being hollow, verdicts in words.
"""

STYLE = """
:root{color-scheme:light dark;
--paper:#fff;--panel:#f5f6f8;--ink:#1b1f24;--soft:#59626d;--rule:#d9dde2;--grid:#e6e9ed;--track:#eceff2;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#b5568f;--c4:#e69f00;--c5:#56b4e9;--good:#00734f;--bad:#b3400a}
@media (prefers-color-scheme:dark){:root{
--paper:#14171b;--panel:#1d2126;--ink:#e8eaed;--soft:#a3acb6;--rule:#363c44;--grid:#2a2f36;--track:#262b31;
--c0:#56b4e9;--c1:#ee7733;--c2:#1fbf91;--c3:#dd92bd;--c4:#e9b13c;--c5:#7a9ff5;--good:#3cc99d;--bad:#ff9a5c}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
sans-serif;overflow-wrap:anywhere;-webkit-text-size-adjust:100%}
main,footer{max-width:60rem;margin:0 auto;padding:0 1.25rem}
main{padding-top:1.75rem}
.kind{color:var(--soft);margin:0;font-size:.9rem}
h1{font-size:clamp(1.35rem,1rem + 1.8vw,2rem);line-height:1.25;margin:.35rem 0 .75rem;text-wrap:balance}
h2{font-size:1.2rem;margin:2.5rem 0 .5rem;padding-top:.75rem;border-top:1px solid var(--rule)}
h3{font-size:1rem;margin:1.4rem 0 .25rem}
p{margin:.5rem 0;max-width:46rem}
.badge{display:inline-block;border:2px solid;border-radius:.4rem;padding:.1rem .6rem;font-weight:650;color:var(--soft)}
.badge.good{color:var(--good)}.badge.bad{color:var(--bad)}
.good-text{color:var(--good)}.bad-text{color:var(--bad);font-weight:650}
dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1.25rem 0}
dl.facts div{background:var(--panel);border-radius:.5rem;padding:.6rem .8rem}
dl.facts dt{color:var(--soft);font-size:.8rem;line-height:1.3}
dl.facts dd{margin:.15rem 0 0;font-size:1.12rem;font-weight:620;line-height:1.3}
figure{margin:1rem 0}
figcaption{color:var(--soft);font-size:.88rem;margin-top:.4rem;max-width:46rem}
.row{display:grid;grid-template-columns:11rem minmax(0,1fr) 9.5rem;gap:.1rem .75rem;align-items:center;margin:.35rem 0}
.row .label{font-size:.92rem;line-height:1.25}
.row .label small{display:block;color:var(--soft)}
.row .value{font-variant-numeric:tabular-nums;font-size:.92rem;line-height:1.25}
.row .values{display:flex;flex-direction:column;font-size:.92rem}
.values .value{color:var(--tone);white-space:nowrap}
@media (min-width:40.01rem){.intervals .row{grid-template-columns:11rem minmax(0,1fr) 14.5rem}}
svg{display:block;overflow:visible}
svg.bar{width:100%;height:1.1rem}svg.lane{width:100%;height:1.5rem}svg.interval{width:100%;height:2.6rem}
svg.axis{width:100%;height:1.2rem}
svg.key{flex:none;width:.9rem;height:.8rem;margin-right:.4rem}
svg.key.wide{width:2rem}
.track{fill:var(--track)}.frame{fill:none;stroke:var(--rule)}.grid{stroke:var(--grid)}
.track~.grid{stroke:var(--rule)}
.zero{stroke:var(--soft);stroke-dasharray:2 3}
.fill{fill:var(--tone)}.area{fill:var(--tone);opacity:.2}
.curve{fill:none;stroke:var(--tone);stroke-width:2.25px;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.dashed{stroke-dasharray:7 4}.dotted{stroke-dasharray:2 4}
.mark{stroke:var(--tone);stroke-width:2.5px}.spread{stroke:var(--tone);stroke-width:2px}
.disc{fill:var(--tone);stroke:var(--paper);stroke-width:1px}.ring{fill:var(--paper);stroke:var(--tone);stroke-width:2px}
.t-1{--tone:var(--ink)}.t0{--tone:var(--c0)}.t1{--tone:var(--c1)}.t2{--tone:var(--c2)}
.t3{--tone:var(--c3)}.t4{--tone:var(--c4)}.t5{--tone:var(--c5)}
text{fill:var(--soft);font-size:13px;font-variant-numeric:tabular-nums}
.axis-label{fill:var(--ink);font-size:13px}
.plot{padding:2rem .9rem 3.1rem 4.4rem;position:relative}
svg.drawing{width:100%;height:21rem}
.plot.square{max-width:32rem}.plot.square svg.drawing{height:auto;aspect-ratio:1}
.x-label{position:absolute;bottom:.1rem;left:0;right:.9rem;text-align:right;font-size:13px}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.4rem 0;padding:0;font-size:.9rem}
.legend li{display:flex;align-items:center}
.scroll{overflow-x:auto;margin:.75rem 0}
table{border-collapse:collapse;font-size:.92rem;line-height:1.35}
th,td{padding:.3rem 1rem .3rem 0;text-align:left;border-bottom:1px solid var(--rule);vertical-align:top;
overflow-wrap:normal}
th{color:var(--soft);font-weight:600}
th:last-child,td:last-child{padding-right:0}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.whole{white-space:nowrap}
pre{background:var(--panel);border-radius:.5rem;padding:.6rem .8rem;margin:.5rem 0;white-space:pre-wrap;
font:.88rem/1.45 ui-monospace,Menlo,Consolas,monospace;-webkit-user-select:all;user-select:all}
details{margin:.75rem 0}summary{cursor:pointer;color:var(--soft)}
footer{color:var(--soft);font-size:.85rem;padding-top:1.5rem;padding-bottom:2rem}
@media (max-width:40rem){
main,footer{padding-left:1rem;padding-right:1rem}
.row{grid-template-columns:minmax(0,1fr) auto;margin:.7rem 0}
.row .label{grid-column:1}.row .value,.row .values{grid-column:2;grid-row:1;text-align:right}
.row>svg{grid-column:1/-1}
.lanes .row:last-child .label,.lanes .row:last-child .value{display:none}
.plot{padding-left:3.4rem;padding-right:.5rem}svg.drawing{height:17rem}
}
@media print{h2{break-after:avoid}figure,.row{break-inside:avoid}}
"""
