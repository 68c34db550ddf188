// The search of the site. A query may name options: `figure --paper` is sent as `figure +paper*`, because a word with
// dashes before it would be excluded.
// A browser starts no worker from a file, so in pages that are opened as files the search runs in a hidden frame.

class FrameWorker extends EventTarget {
  constructor(url) {
    super()
    const frame = document.createElement("iframe")
    frame.hidden = true
    frame.srcdoc = `<script src="${url}"></script>`
    this.started = new Promise(resolve => { frame.onload = () => resolve(frame.contentWindow) })
    document.body.append(frame)
  }

  async postMessage(message) {
    const inside = await this.started
    inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
    inside.dispatchEvent(new MessageEvent("message", { data: message }))
  }
}

const QUERY = 2 // the type of Material's message that asks

window.Worker = class extends (location.protocol === "file:" ? FrameWorker : Worker) {
  postMessage(message) {
    const query = message.type === QUERY && { data: message.data.replace(/(^|[\s"])--?(\w[\w-]*)/g, "$1+$2*") }
    super.postMessage({ ...message, ...query })
  }
}
