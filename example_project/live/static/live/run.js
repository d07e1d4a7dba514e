"use strict";

// What comes from a run is only ever set as text, never as HTML.
const page = document.getElementById("run");
const trouble = document.getElementById("trouble");
const source = new EventSource(page.dataset.events);

function row(...texts) {
  const line = document.createElement("tr");
  for (const text of texts) line.insertCell().textContent = text;
  return line;
}

source.addEventListener("open", () => { trouble.textContent = ""; });
source.addEventListener("state", (event) => {
  const run = JSON.parse(event.data);
  document.getElementById("status").textContent = run.status;
  const steps = run.steps.map((step) => row(step.index, step.id, step.kind, step.status));
  const waits = run.waits.map((wait) => row("", wait.id, wait.kind, wait.due_at ? `waits until ${wait.due_at}` : "waits"));
  document.getElementById("rows").replaceChildren(...steps, ...waits);
});
source.addEventListener("end", () => source.close());
source.addEventListener("error", () => {
  const over = source.readyState === EventSource.CLOSED;
  trouble.textContent = over ? "(nothing live here: it takes an ASGI server)" : "(connecting again)";
});
