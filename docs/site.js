// The copy button of a console block copies its commands alone: no prompt, no output.

function commandsOf(text) {
  const commands = [];
  let isContinued = false;
  for (const line of text.split("\n")) {
    if (line.startsWith("$ ")) commands.push(line.slice(2));
    else if (isContinued) commands.push(line);
    isContinued = (line.startsWith("$ ") || isContinued) && line.endsWith("\\");
  }
  return commands.join("\n");
}

if (typeof document !== "undefined") {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-clipboard-target]");
    const block = button && document.querySelector(button.dataset.clipboardTarget);
    const commands = block ? commandsOf(block.textContent) : "";
    if (commands) button.setAttribute("data-clipboard-text", commands);
  }, true);  // before the theme's own listener reads the attribute
}

if (typeof module !== "undefined") module.exports = { commandsOf };
