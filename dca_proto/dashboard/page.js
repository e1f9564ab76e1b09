"use strict";
// Puts in the sections that the server sends. The server has escaped all texts; this script makes no markup of its own.
const live = document.getElementById("live");

function say(text, tone) {
  if (live.textContent !== text) live.textContent = text;
  live.className = tone;
}

function put(name, html) {
  const section = document.getElementById(name);
  if (section === null) return;
  const unfolded = [...section.querySelectorAll("details[open] > summary")].map((one) => one.textContent);
  const focusable = "summary, .scroll";
  const places = [...section.querySelectorAll(focusable)];
  const focused = places.indexOf(document.activeElement);
  const scrolled = [...section.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const parsed = new DOMParser().parseFromString(html, "text/html");
  section.replaceChildren(...parsed.body.childNodes);
  for (const summary of section.querySelectorAll("details > summary")) {
    summary.parentElement.open = unfolded.includes(summary.textContent);
  }
  section.querySelectorAll(".scroll").forEach((one, place) => { one.scrollLeft = scrolled[place] || 0; });
  if (focused >= 0) section.querySelectorAll(focusable)[focused]?.focus({ preventScroll: true });
}

const events = new EventSource("events?token=" + encodeURIComponent(document.body.dataset.token));
events.onmessage = (message) => {
  for (const [name, html] of Object.entries(JSON.parse(message.data))) put(name, html);
  document.title = `${document.getElementById("badge").textContent.trim()} · ${document.getElementById("title").textContent}`;
  say("live", "good");
};
events.onerror = () => say("no connection to the dashboard; the figures below are old, and it tries again", "bad");
