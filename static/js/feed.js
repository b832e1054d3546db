// The live socket: connects, passes on messages, and reconnects when the connection is lost.
import { unfolded } from "./live_frame.js";

const SILENT_MS = 6000; // the server sends at least every two seconds; a socket silent for longer is dead
const FIRST_MS = 20_000; // a busy server may take long for the snapshot
const WAITS_S = [1, 2, 3, 5];
const SIGN_IN_NEEDED = 4401;
const REFUSED = 1006; // without a close frame

export class Feed {
  // on: {message(object), state(name, secondsToRetry)}; states: connecting, live, disconnected, signin
  // share: the token of a shared wall, which the socket takes in its first message
  constructor(seconds, on, share = "") {
    this.seconds = seconds;
    this.share = share;
    this.on = on;
    this.failures = 0;
    this.open();
    this.watch = setInterval(() => this.check(), 1000);
    addEventListener("online", () => this.retryNow());
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const packed = "DecompressionStream" in window ? "&deflate=1" : "";
    const path = this.share ? "/ws/share" : `/ws/live?seconds=${this.seconds}&folded=1${packed}`;
    const socket = new WebSocket(`${scheme}://${location.host}${path}`);
    if (this.share) socket.addEventListener("open", () => socket.send(JSON.stringify({ token: this.share })));
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    this.reading = Promise.resolve(); // messages are decompressed one after another
    this.heardAt = Date.now();
    this.patience = FIRST_MS;
    socket.addEventListener("message", (event) => this.take(socket, event));
    socket.addEventListener("close", (event) => this.lost(socket, event.code));
  }

  take(socket, event) {
    if (socket !== this.socket) return;
    // The computer slept: a snapshot replaces the messages that were queued meanwhile.
    if (Date.now() - this.heardAt > this.patience) { this.renew(); return; }
    this.heardAt = Date.now();
    this.patience = SILENT_MS;
    if (this.failures || !this.wasLive) { this.failures = 0; this.wasLive = true; this.on.state("live"); }
    if (typeof event.data === "string") { this.say(JSON.parse(event.data)); return; }
    this.reading = this.reading.then(async () => {
      const message = await inflated(event.data);
      if (socket === this.socket) this.say(message);
    });
  }

  say(message) {
    if (message.type === "waiting") return; // the server lives, and says nothing of Redis
    this.on.message({ ...message, frame: unfolded(message.frame) });
  }

  lost(socket, code) {
    if (socket !== this.socket || this.stopped) return;
    this.wasLive = false;
    if (code === SIGN_IN_NEEDED) { this.signIn(); return; }
    if (code === REFUSED) this.askWhetherSignedOut();
    this.wait = WAITS_S[Math.min(this.failures++, WAITS_S.length - 1)];
    this.on.state("disconnected", this.wait);
    this.retryAt = Date.now() + this.wait * 1000;
  }

  signIn() {
    this.stopped = true;
    this.on.state("signin");
  }

  // A refused handshake looks like an unreachable server: only a request shows the reason.
  async askWhetherSignedOut() {
    try {
      const answer = await fetch(this.share ? location.pathname : "/api/v1/live");
      if (answer.status === (this.share ? 404 : 401) && !this.wasLive) this.signIn();
    } catch { /* away: it is tried again */ }
  }

  check() {
    if (this.stopped) return;
    if (this.retryAt) {
      const left = Math.ceil((this.retryAt - Date.now()) / 1000);
      if (left <= 0) this.retryNow();
      else this.on.state("disconnected", left);
    } else if (Date.now() - this.heardAt > this.patience) {
      this.renew();
    }
  }

  renew() {
    const old = this.socket;
    old.close();
    this.lost(old, 0);
  }

  retryNow() {
    if (!this.retryAt || this.stopped) return;
    this.retryAt = 0;
    this.open();
  }

  // Changes the range, from the next snapshot on.
  ask(seconds) {
    this.seconds = seconds;
    const old = this.socket;
    this.retryAt = 0;
    this.open();
    old.close();
  }
}

// Returns the message in a zlib stream.
function inflated(buffer) {
  return new Response(new Blob([buffer]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}
