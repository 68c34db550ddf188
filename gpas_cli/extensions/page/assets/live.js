// A page that `gpas report --serve` shows asks its server for new data; nothing is reloaded.

const SLOWEST = 60; // seconds between two questions while the server does not answer

class Live {
  // made: when the page's content changed last.
  constructor(seconds, made, show) {
    this.seconds = seconds;
    this.wait = seconds;
    this.made = made;
    this.show = show;
    this.tag = "";
    this.status = document.getElementById("live");
    this.say(true);
    setInterval(() => this.say(), 1000);
    document.addEventListener("visibilitychange", () => this.plan(0));
    this.plan(seconds);
  }

  plan(seconds) {
    clearTimeout(this.timer);
    if (!document.hidden) this.timer = setTimeout(() => this.ask(), 1000 * seconds);
  }

  async ask() {
    try {
      const answer = await fetch("data.json", { headers: this.tag ? { "If-None-Match": this.tag } : {}, cache: "no-store" });
      if (answer.ok) {
        this.tag = answer.headers.get("ETag") ?? "";
        const data = await answer.json();
        this.made = data.made;
        this.show(data);
      } else if (answer.status !== 304) throw new Error(String(answer.status));
      this.say(true);
      this.wait = this.seconds;
    } catch {
      this.wait = Math.min(SLOWEST, 2 * this.wait);
      this.say(false);
    }
    this.plan(this.wait);
  }

  say(answers = this.answers) {
    const text = answers ? "live" : "stale, the server does not answer";
    if (this.status.textContent !== text) this.status.textContent = text;
    this.status.classList.toggle("stale", !answers);
    document.getElementById("made").textContent = ago(this.made);
    this.answers = answers;
  }
}

async function fetchDetails(cell) {
  const answer = await fetch(`cell.json?id=${encodeURIComponent(cell.id)}`, { cache: "no-store" });
  return answer.ok ? answer.json() : null;
}

// Replace what an element holds by HTML from gpas, which has escaped all text of others. Scripts in it do not run.
function replaceHtml(element, html) {
  if (element.shownHtml === html) return;
  element.shownHtml = html;
  const left = [...element.querySelectorAll(".wide")].map((one) => one.scrollLeft);
  const open = [...element.querySelectorAll("details[open]")].map((one) => one.id);
  const parsed = new DOMParser().parseFromString(html, "text/html");
  element.replaceChildren(...parsed.body.childNodes);
  element.querySelectorAll(".wide").forEach((one, i) => (one.scrollLeft = left[i] ?? 0));
  for (const id of open) element.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", "");
}
