// The waveform of audio: the peak of all channels in each short interval, relative to the loudest peak.

const QUIETEST = 0.02; // the smallest divisor of peaks, so that near silence stays low

/** @param {readonly Float32Array[]} channels Samples in [-1, 1]. @param {number} count How many peaks are returned.
 * @param {number} [samplesPerPeak] Default: the whole audio. */
export const peaksOf = (channels, count, samplesPerPeak = channels[0].length / count) => {
  const peaks = new Float32Array(count);
  for (const samples of channels) {
    const end = Math.min(samples.length, Math.floor(count * samplesPerPeak));
    for (let index = 0; index < end; index++) {
      const at = Math.min(count - 1, Math.floor(index / samplesPerPeak));
      peaks[at] = Math.max(peaks[at], Math.abs(samples[index]));
    }
  }
  const loudest = Math.max(QUIETEST, ...peaks);
  return peaks.map(peak => peak / loudest);
};

/** Fetches and decodes audio. @param {string} address @param {number} sampleRate */
export const decodeSound = async (address, sampleRate) => {
  const bytes = await (await fetch(address)).arrayBuffer();
  return new OfflineAudioContext(1, 1, sampleRate).decodeAudioData(bytes);
};

/** @param {AudioBuffer} sound */
export const channelsOf = sound => Array.from({ length: sound.numberOfChannels }, (_, channel) => sound.getChannelData(channel));
