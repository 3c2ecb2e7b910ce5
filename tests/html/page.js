'use strict';
// The script of tools/html/report.html: what it draws from the data of each kind of page.
const assert = require('assert');
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const template = fs.readFileSync(path.join(__dirname, '../../tools/html/report.html'), 'utf8');
const script = new vm.Script(template.match(/<script>\n([^]*)<\/script>/)[1]);

// What the script uses of an element. The other ways to add content do not exist, so texts cannot
// become markup.
class Element {
  constructor(name) {
    Object.assign(this, {name, attributes: {}, children: [], style: {}, listeners: {}, dataset: {}});
    Object.seal(this);
  }
  setAttribute(name, value) {
    assert(!/NaN|undefined|Infinity/.test(value), `${this.name}: ${name}="${value}"`);
    this.attributes[name] = String(value);
  }
  append(...children) { this.children.push(...children.map(one => one instanceof Element ? one : String(one))); }
  replaceChildren(...children) { this.children = []; this.append(...children); }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  getBoundingClientRect() { return {left: 0, width: +this.attributes.viewBox.split(' ')[2]}; }
  get textContent() { return this.children.map(one => one.textContent ?? one).join(''); }
  all(test) { return this.children.flatMap(one => one.all ? [...(test(one) ? [one] : []), ...one.all(test)] : []); }
  named(name) { return this.all(one => one.name === name); }
  classed(name) { return this.all(one => (one.attributes.class ?? '').split(' ').includes(name)); }
}

// Draws a page. The functions of the script are members of the result.
function load(report, dark = false) {
  const main = new Element('main'), root = new Element('html'), theme = {matches: dark, addEventListener() {}};
  const document = {
    documentElement: root,
    createElementNS: (space, name) => new Element(name),
    getElementById: id => id === 'page' ? main : {textContent: JSON.stringify(report)},
  };
  const context = vm.createContext({document, matchMedia: () => theme, main, root});
  script.runInContext(context);
  return context;
}

const empty = {kind: 'run', title: 'r', settings: {}, metrics: {}, plan: {}, warnings: [], curves: {}, timeline: null,
  timeline_note: 'No trace'};
const page = load(empty);
const plain = value => JSON.parse(JSON.stringify(value));
const series = (x, y, more) => [{name: 'a', colour: 1, look: 'line', x, y, ...more}];
const texts = (node, name) => node.named(name).map(one => one.textContent);
const has = (node, part) => assert(node.textContent.includes(part), `"${part}" is not in: ${node.textContent}`);
const hasNot = (node, part) => assert(!node.textContent.includes(part), `"${part}" is in: ${node.textContent}`);

function checkNumbers() {
  for (const [value, unit, text] of [
    [12345, 'count', '12.3 k'], [7, 'count', '7'], [65345232, 'bytes', '65.3 MB'], [0, 'bytes', '0 B'],
    [0.3123, 'share', '31.2 %'], [0.0123, 'seconds', '12.3 ms'], [4e-6, 'seconds', '4 us'], [0, 'seconds', '0 s'],
    [1200, 'seconds', '20 min'], [1.5e9, 'bytes_per_s', '1.5 GB/s'], [0.0012346, 'number', '0.001235'],
    [null, 'number', '-'], ['x', 'bytes', '-']]) assert.equal(page.format(value, unit), text);
  assert.equal(page.binary(65536), '64 KiB');
  assert.deepEqual(plain(page.ticks(0, 10, 5)), [0, 2, 4, 6, 8, 10]);
  assert.equal(page.ticks(3, 3, 5).length, 1);
  assert.equal(page.ticks(1.5, 1.5 + Number.EPSILON, 5).length, 1);  // constant but for rounding
  assert.equal(page.ticks(0, 0.31, 4).length, 4);  // 0, 0.1, 0.2, 0.3
}

function checkCharts() {
  const draw = (x, y, chart = {}) => page.draw({title: 'Loss <1>', series: series(x, y), ...chart});
  for (const y of [[], [null, null], [1e308, -1e308]]) assert.equal(draw([1, 2].slice(0, y.length), y), null);
  const chart = draw([1, 2, 3, 4], [1, null, 3, 4]);
  assert.equal(chart.named('svg')[0].attributes['aria-label'], 'Loss <1>');
  const d = chart.classed('line')[0].attributes.d;
  assert.equal(d.match(/M/g).length, 2);  // the gap begins a new line
  assert.equal(chart.classed('legend').length, 0);  // one series needs none
  assert.equal(draw([1, 2, 3], [1, null, 3], {series: series([1, 2, 3], [1, null, 3], {look: 'dots'})})
    .classed('line')[0].attributes.d.match(/M/g).length, 1);  // few values are joined over gaps
  assert.equal(draw([5], [1]).classed('dot').length, 1);  // a single value is seen too
  for (const label of texts(draw([1, 2], [0, 0]), 'text')) assert(!label.includes('e-'), label);
  const marked = draw([1, 2, 3], [1, 2, 3], {marks: [2], marksName: 'bad steps'});
  assert.equal(marked.named('path').filter(one => one.attributes.class === 'mark').length, 1);
  has(marked.classed('legend')[0], 'bad steps');
}

// Spikes make the axis logarithmic, so that they do not flatten the other values.
function checkLogarithmicAxis() {
  const norm = {title: 'Norm', note: 'before clipping', logarithmic: true};
  const draw = y => page.draw({...norm, series: series([1, 2, 3, 4], y)});
  const chart = draw([1, 10, 100, 1]);
  has(chart, 'before clipping, logarithmic');
  assert(texts(chart, 'text').includes('100'));
  // On a logarithmic axis, equal factors are equal distances.
  const y = chart.classed('line')[0].attributes.d.match(/ [\d.]+/g).map(Number);
  assert(Math.abs((y[0] - y[1]) - (y[1] - y[2])) < 0.3 && y[1] - y[2] > 50, y);
  hasNot(draw([10, 20, 30, 40]), 'logarithmic');  // the range is too small
  hasNot(draw([0, 20, 30, 45]), 'logarithmic');  // 0 has no logarithm
}

function checkPointer() {
  const both = [...series([0, 10, 20], [1, 2, 3]), {name: 'b', colour: 2, look: 'dots', x: [0, 20], y: [7, 8]}];
  const chart = page.draw({title: 'x', unit: 'share', series: both});
  const [drawing] = chart.named('svg'), [tip] = chart.classed('tip');
  drawing.listeners.pointermove({clientX: 300});
  assert.equal(tip.textContent, 'step 10a 200 %b 700 % (step 0)');
  assert.equal(tip.style.visibility, 'visible');
  drawing.listeners.pointermove({clientX: 10});  // left of the axes
  assert.equal(tip.style.visibility, 'hidden');
}

const gathers = (name, begin, bytes) => [0, 2, begin, 10, name, 'communication', bytes];
const pass = (name, begin, us) => [0, 1, begin, us, name, 'work', 0];
const rows = [[0, 1, 'compute'], [0, 2, 'gather'], [0, 3, 'reduce']];

function checkStepMemory() {
  const spans = [
    gathers('all_gather a', 0, 10),   // needed from 0 to 40
    gathers('all_gather b', 10, 20),  // from 10 to 60
    gathers('all_gather a', 50, 10),  // from 50 to 80
    pass('forward a', 20, 20), pass('forward b', 40, 10), pass('backward b', 50, 10), pass('backward a', 60, 20),
    gathers('reduce_scatter b', 60, 200),   // whole gradient from 50 to 70
    gathers('reduce_scatter a', 80, 100)];  // from 60 to 90
  const step = {name: 'step 1', us: 100, ranks: 1, rows, spans};
  const plan = {parameters: 1000, gathered: 30, whole_gradients: 300, activations: 8};
  // At 60: the gathered a, both whole gradients, and the activations of a.
  const chart = page.drawStepMemory(step, plan);
  has(chart, 'peak: 1.31 kB after 60 us, in backward a');
  for (const name of ['gathered parameters', 'whole gradients', 'activations']) has(chart, name);
  hasNot(page.drawStepMemory(step, {parameters: 1000}), 'activations');
  assert.equal(page.drawStepMemory(step, {}), null);
  // A gather that begins before the step takes memory from the beginning of the step.
  const early = {...step, spans: [gathers('all_gather a', -20, 500), pass('forward a', 20, 20)]};
  has(page.drawStepMemory(early, {parameters: 1000, gathered: 500}),
    'peak: 1.5 kB after 0 s, in the begin of the step');
  // Two micro batches that add to whole gradients, which are reduced once: 100 from 20 to 60.
  const twice = [10, 30].flatMap(begin => [pass('forward a', begin, 10), pass('backward a', begin + 10, 10)]);
  has(page.drawStepMemory({...step, us: 60, spans: [...twice, gathers('reduce_scatter a', 50, 100)]},
    {parameters: 1000, whole_gradients: 100, activations: 8}), 'peak: 1.11 kB after 20 us, in backward a');
}

const timeline = {
  name: 'step 2', us: 200, ranks: 9, rows: [...rows, [1, 1, 'compute']],
  spans: [pass('forward layers.0', 10, 20), [0, 1, 30, 20, 'wait gather layers.1', 'wait', 0],
    gathers('all_gather layers.1', 20, 1e6), pass('backward layers.0', -40, 30), pass('too narrow', 60, 0.001),
    [1, 1, 190, 50, 'optimizer', 'work', 0], [7, 1, 0, 9, 'of no row', 'work', 0]],
};
const run = {
  ...empty, title: 'first <b>', warnings: [{evidence: 'MFU is 25.0 %, below 30 %', remedy: 'raise it'}], timeline,
  settings: {strategy: 'hybrid_shard', mesh: '2x2', world_size: '4', dtype: 'bf16', fp8: 'true',
    seed: '18446744073709551615', mesh_reason: 'of <i>', init: ''},
  metrics: {loss_last: 1.5, mfu: 0.25, steps: 10, device_memory_bytes: 25e6, model: 'tiny', gpu0: null,
    rate: 0.123456789},
  plan: {hosts: [{name: 'node<0>', ranks: [0, 1]}, {name: 'node1', ranks: [2, 3]}], islands: [[0, 1], [2, 3]],
    order: [0, 1, 2, 3], replicate: 2, shard: 2, memory: {parameters: 5e6, activations: 2e7, resident: 0}},
  curves: {loss: {x: [1, 2, 3], y: [3, 2, 1]}, eval_loss: {x: [1, 2, 3], y: [null, 2.5, null]},
    network_sent_per_s: {x: [1, 2, 3], y: [0, 0, 0]}, grad_norm: {x: [1, 2], y: [1, 1.5]},
    nonfinite: {x: [1, 2, 3], y: [null, 0, 1]}},
};

function checkTimeline() {
  const [legend, drawing] = page.drawTimeline(timeline);
  assert.deepEqual(texts(legend, 'span'), ['forward', 'optimizer and other work', 'compute waits', 'gather']);
  assert.deepEqual(texts(drawing, 'title'), ['forward layers.0: 20 us', 'wait gather layers.1: 20 us',
    'all_gather layers.1: 10 us', 'optimizer: 50 us']);
  assert.deepEqual(drawing.classed('label').map(one => one.textContent), ['rank 0', 'rank 1']);
  // A span that ends after the step is cut at the end of the step.
  const last = drawing.all(one => one.name === 'rect' && one.attributes.class === 'c3')[0].attributes;
  assert.equal(+last.x + +last.width, 1112);
}

function checkRunPage() {
  const {main, document} = load(run);
  assert.equal(document.title, 'first <b>');
  assert.deepEqual(texts(main, 'h1'), ['first <b>']);
  assert.deepEqual(texts(main, 'h2'),
    ['Learning', 'Speed', 'Memory plan of a rank', 'Timeline of one step', 'Mesh', 'Settings']);
  assert.deepEqual(texts(main, 'figcaption'), ['Loss', 'Gradient norm', 'Memory over the step']);  // no idle network
  for (const part of ['tiny, hybrid_shard, mesh 2x2, 4 ranks, bf16 with products in fp8', 'MFU is 25.0 %, below 30 %',
    'Remedy: raise it.', 'step 2 took 200 us', 'The first 2 of 9 ranks', '2 replicas of 2 shards', 'node<0>',
    'Chosen because of <i>.', 'steps with an infinite or NaN loss or gradient norm', '18446744073709551615',
    '0.123457']) has(main, part);
  hasNot(main, 'has not ended');
  assert(texts(main, 'title').includes('rank 3: replica 1, shard 1, island 1'));
  assert.deepEqual(main.classed('bar')[0].children.map(one => one.attributes.title),
    ['parameters (master shards): 5 MB', 'activations: 20 MB']);
  const early = load(empty).main;
  has(early, 'The run has not ended, or ended early');
  has(early, 'No trace');
  assert.equal(early.named('svg').length, 0);
}

function checkTheme() {
  for (const dark of [false, true]) {
    const {main, root} = load(empty, dark);
    assert.equal(root.dataset.theme, dark ? 'dark' : 'light');
    main.named('button')[0].listeners.click();
    assert.equal(root.dataset.theme, dark ? 'light' : 'dark');
  }
}

// Islands within a host are separated; hosts that do not fit beside each other go below.
function checkMesh() {
  const drawn = plan => page.meshSection(plan, '')[1].named('svg')[0];
  const islands = drawn({hosts: [{name: 'h', ranks: [0, 1, 2, 3, 4, 5]}], islands: [[0], [1, 2, 3], [4, 5]]});
  assert.equal(islands.classed('border').length, 2);
  const ranks = Array.from({length: 999}, (_, i) => i);
  const many = drawn({hosts: ranks.slice(0, 9).map(i => ({name: `h${i}`, ranks: [3 * i, 3 * i + 1, 3 * i + 2]}))});
  assert.equal(new Set(many.classed('host').map(one => one.attributes.y)).size, 2);
  assert.equal(drawn({hosts: [{name: 'h', ranks}]}).named('g').length, 256);
  assert.equal(page.meshSection({}, '').length, 0);
}

function checkComparison() {
  const curves = {loss: {x: [1, 2], y: [2, 1]}, mfu: {x: [1, 2], y: [0.1, 0.2]}};
  const {main} = load({kind: 'compare', title: 'Comparison of runs', notes: ['b was resumed'],
    runs: [{name: 'a', curves}, {name: 'b', curves: {loss: curves.loss}}],
    figures: [{name: 'MFU', cells: ['20 %', '-'], best: 0}],
    settings: [{name: 'lr', cells: ['0.1', '0.2'], best: 2}]});
  for (const part of ['2 runs compared', 'b was resumed', 'Settings that differ', 'smoothed']) has(main, part);
  assert.deepEqual(texts(main, 'td'), ['a', 'b', '20 %', '-', 'a', 'b', '0.1', '0.2']);
  assert.deepEqual(texts(main, 'b').filter(text => /\d/.test(text)), ['20 %']);
  assert.deepEqual(texts(main, 'figcaption'), ['Loss', 'MFU']);
  assert.equal(main.classed('chart')[0].named('path').length, 2);
}

function checkPlan() {
  const one = {strategy: 'full_shard', replicate: 1, shard: 16, micro_batch: 2, micro_batches: 8, recompute: 'none',
    prefetch: 1, dtype: 'bf16', tokens_per_s: 1e5, step_s: 2, mfu: 0.4, exposed_s: 0.5, memory_bytes: 4e10,
    fits: true, tied: false, memory: {parameters: 3e10, process: 1e10}, resident_bytes: 5e10};
  const {main} = load({kind: 'plan', title: 'p', model: 'm', gpu: 'H100', hosts: 2, ranks_per_host: 8, ranks: 16,
    seq: 2048, memory_bytes: 8e10, allocates_once: true, total: 40, remarks: ['It helps', 'Either:'], timeline,
    candidates: [one, {...one, tied: true}, {...one, fits: false, prefetch: 2}], sources: 'From a sheet.',
    growth: [{hosts: 1, tokens_per_s: 6e4, mfu: 0.5}, {hosts: 2, tokens_per_s: 1e5, mfu: 0.4}],
    timeline_memory: {parameters: 1000}, shown_micro_batches: 4});
  for (const part of ['m on 2 x 8 H100', 'sequence 2048, bf16, 16 ranks, 256 rows a step', '6250 per GPU', 'of 80 GB',
    'It helps.', 'The best 3 of 40.', 'The step has 8 micro batches; 4 are shown.', 'process beside its buffers',
    'All of it is allocated before the first step.', 'Growth over hosts', 'From a sheet.']) has(main, part);
  hasNot(main, 'Either:.');
  assert.deepEqual(main.named('table')[0].named('tr').map(row => row.named('td')[4]?.textContent),
    [undefined, '100 k', '100 k, tied with the first', '100 k, does not fit']);
  assert.deepEqual(main.named('table')[0].named('tr')[3].named('td').map(cell => cell.textContent),
    ['full_shard, 2 ahead', '1 x 16', '2 x 8', 'none', '100 k, does not fit', '40 %', '25 %', '50 GB', '2 s']);
}

function checkBusbw() {
  const half = (bytes, bus_bw, limit_percent, more) => ({collective: 'all_reduce', type: 'float', op: 'sum', root: -1,
    place: 'out of place', ranks: 4, bytes, bus_bw, limit_percent, ...more});
  const {main} = load({kind: 'busbw', title: 'b', expect: 0.6, halves: [
    half(1024, 1, 50), half(2048, 2, null), half(4096, 4, 0),
    half(1024, 1, null, {collective: 'reduce', root: 2, place: 'in place'}),
    half(1024, 2, null, {collective: 'all_gather', op: ''})]});
  assert.deepEqual(texts(main.classed('legend')[0], 'span'),
    ['all_reduce float sum, out of place', 'all_reduce float sum, out of place, limit',
      'reduce float sum root 2, in place', 'all_gather float, out of place']);
  // Sizes are on a logarithmic axis: equal factors are equal distances.
  const x = main.classed('line')[0].attributes.d.match(/[ML][\d.]+/g).map(text => +text.slice(1));
  assert(Math.abs((x[1] - x[0]) - (x[2] - x[1])) < 0.3, x);
  for (const label of ['1 KiB', '4 KiB', '3 GB/s']) assert(texts(main, 'text').includes(label), label);
  const names = ['message size (bytes of the whole tensor), logarithmic', 'bus bandwidth (bytes per second), logarithmic'];
  for (const name of names) assert(texts(main, 'text').includes(name), name);
  // The last label ends inside the drawing.
  const [last] = main.named('text').filter(one => one.textContent === '4 KiB');
  assert(+last.attributes.x + 3.25 * 5 <= 1120, last.attributes.x);
  // Rates are on a logarithmic axis, too.
  const y = main.classed('line')[0].attributes.d.match(/ [\d.]+/g).map(Number);
  assert(Math.abs((y[1] - y[0]) - (y[2] - y[1])) < 0.3, y);
  // Only the first point is below 60 % of its limit, which is 2, as the second point.
  const dots = main.classed('dot');
  assert.deepEqual(dots.map(dot => dot.attributes.class.includes('faint')), [true, false, false, false, false, false]);
  assert.equal(dots[3].attributes.cy, dots[1].attributes.cy);
  has(main, 'Bus bandwidth of all_reduce, reduce, all_gather');
  has(main, 'over 4 ranks');
  has(main, 'below the target of 60 % of the limit');
  // A group of one rank moves nothing. A logarithmic axis cannot show its rate of 0.
  assert(texts(load({kind: 'busbw', title: 'b', halves: [half(8, 0), half(16, 1e9)]}).main, 'text').includes('0 B/s'));
  assert.equal(load({kind: 'busbw', title: 'b', halves: []}).main.named('svg').length, 0);
}

// Calls visit with each form of the document in which one member, at any depth, has another value.
function eachDamage(document, visit, node = document) {
  for (const name of Object.keys(node)) {
    const kept = node[name];
    for (const other of [undefined, null, 'x', -1, 0.5, true, 1e300, [], {}]) {
      node[name] = other;
      visit();
    }
    node[name] = kept;
    if (kept !== null && typeof kept === 'object') eachDamage(document, visit, kept);
  }
}

// The programs check the form of a plan but not its values, and nothing of metrics.json.
function checkDamage() {
  const damaged = plain(run);
  let drawn = 0;
  const {metrics, settings, plan: {order, memory, hosts, islands}} = damaged;
  for (const part of [metrics, settings, order, memory, hosts[0].ranks, islands[0]]) {
    eachDamage(part, () => {
      load(damaged);
      ++drawn;
    });
  }
  assert(drawn > 100, drawn);
}

for (const check of [checkNumbers, checkCharts, checkLogarithmicAxis, checkPointer, checkStepMemory, checkTimeline,
  checkRunPage, checkTheme, checkMesh, checkComparison, checkPlan, checkBusbw, checkDamage]) check();
console.log('report.html draws runs, comparisons, plans and bandwidth');
