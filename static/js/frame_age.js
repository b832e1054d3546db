// Ages of frames. A message left the server at `sent_at`, by the server's clock: its frame had that age then, took a
// while to arrive, and has been shown since.
const wall = () => Date.now() / 1000;
const steady = () => (performance.timeOrigin + performance.now()) / 1000; // does not step when the clock is set

export class FrameAges {
  constructor() {
    this.fastest = Infinity; // server's clock to the reader's, with the quickest message
    this.sentAt = 0;
  }

  // The age of a message's frame on arrival, and the time of arrival.
  stamp({ frame, sent_at = frame.at }, receivedAt = steady()) {
    if (sent_at < this.sentAt) this.fastest = Infinity; // the server's clock was set back
    this.sentAt = sent_at;
    this.fastest = Math.min(this.fastest, receivedAt - sent_at);
    const underway = receivedAt - sent_at - this.fastest;
    return { age: Math.max(0, sent_at - frame.at) + underway, at: wall() };
  }

  // The frame in the page, which arrived with the first byte of its answer.
  ofPage(message) {
    const [page] = performance.getEntriesByType("navigation");
    const receivedAt = (performance.timeOrigin + (page?.responseStart ?? performance.now())) / 1000;
    const stamp = this.stamp(message, receivedAt);
    return { ...stamp, age: stamp.age + steady() - receivedAt };
  }
}

export const ageOf = ({ age, at }) => age + wall() - at;
