// Axes: from values to pixels, and the ticks between.

// A scale maps the domain [low, high] to pixels [from, to].
function makeScale(low, high, from, to, log) {
  const forth = log ? Math.log10 : (value) => value;
  const back = log ? (value) => 10 ** value : (value) => value;
  const [a, b] = [forth(low), forth(high)];
  const at = (value) => from + ((forth(value) - a) / (b - a || 1)) * (to - from);
  const value = (pixel) => back(a + ((pixel - from) / (to - from)) * (b - a));
  return { at, value, low, high, log };
}

// Return [low, high] with a margin, so that no curve lies on the frame.
function padded(low, high, log, margin = 0.04) {
  if (log) return low === high ? [low / 2, high * 2] : [low * (low / high) ** margin, high * (high / low) ** margin];
  const room = (high - low || Math.abs(high) || 1) * margin;
  return [low - room, high + room];
}

function ticksOf(scale, most) {
  const found = scale.log ? logTicks(scale.low, scale.high, most) : linearTicks(scale.low, scale.high, most);
  return found.length > 1 ? found : linearTicks(scale.low, scale.high, most);
}

function linearTicks(low, high, most) {
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((part) => part * power).find((size) => size >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

// Powers of ten; in fewer than two decades their multiples too, as many as fit.
function logTicks(low, high, most) {
  for (const parts of [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const part of parts) {
        const tick = Number(`${part}e${power}`);
        if (tick >= low && tick <= high) found.push(tick);
      }
    }
    if (found.length <= most) return found;
    if (parts.length === 1) return found.filter((_, i) => i % Math.ceil(found.length / most) === 0);
  }
  return [];
}

function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e12) return shortNumber(value);
  if (size >= 1e9) return `${shortNumber(value / 1e9)}B`;
  if (size >= 1e6) return `${shortNumber(value / 1e6)}M`;
  if (size >= 1e4) return `${shortNumber(value / 1e3)}k`;
  if (size !== 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(6)));
}
