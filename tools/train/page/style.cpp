#include "page/style.hpp"

#include <fmt/format.h>

#include "page/text.hpp"

namespace train::page {
namespace {

// Colours have one value for each theme; c1 to c8 differ for people with colour blindness too.
constexpr std::string_view css = R"css(
:root{color-scheme:light;--page:#f6f6f3;--card:#fcfcfb;--ink:#0b0b0b;--soft:#52514e;--mute:#83817b;
--line:#e1e0d9;--axis:#b9b7ae;--lane:#f0efea;--warn:#9a5b00;--warnbg:#fff4dc;
--c1:#2a78d6;--c2:#1baf7a;--c3:#c99500;--c4:#008300;--c5:#4a3aa7;--c6:#e34948;--c7:#e87ba4;--c8:#eb6834}
@media (prefers-color-scheme:dark){:root:not([data-theme=light]){color-scheme:dark;--page:#0d0d0d;
--card:#1a1a19;--ink:#fff;--soft:#c3c2b7;--mute:#898781;--line:#2c2c2a;--axis:#4a4945;--lane:#232321;
--warn:#f2c261;--warnbg:#2d2412;--c1:#3987e5;--c2:#199e70;--c3:#c98500;--c4:#3da53d;--c5:#9085e9;
--c6:#e66767;--c7:#d55181;--c8:#d95926}}
:root[data-theme=dark]{color-scheme:dark;--page:#0d0d0d;--card:#1a1a19;--ink:#fff;--soft:#c3c2b7;
--mute:#898781;--line:#2c2c2a;--axis:#4a4945;--lane:#232321;--warn:#f2c261;--warnbg:#2d2412;
--c1:#3987e5;--c2:#199e70;--c3:#c98500;--c4:#3da53d;--c5:#9085e9;--c6:#e66767;--c7:#d55181;--c8:#d95926}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 60px}
header{display:flex;justify-content:space-between;align-items:start;gap:16px}
h1{font-size:26px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:17px;margin:34px 0 10px}
.sub,.note{color:var(--soft);margin:0}.note{font-size:13px}
button{font:inherit;font-size:13px;color:var(--soft);background:var(--card);border:1px solid var(--line);
border-radius:8px;padding:4px 10px;cursor:pointer}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 16px;margin:0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-top:20px}
.tile b{display:block;overflow-wrap:anywhere;font-size:24px;font-weight:600;line-height:1.25;letter-spacing:-.01em}
.tile span{color:var(--soft);font-size:13px}.tile small{display:block;color:var(--mute);font-size:12px}
.traps{margin-top:14px;display:grid;gap:8px}
.trap{background:var(--warnbg);border-radius:10px;padding:9px 14px}
.trap b{color:var(--warn)}.trap span{color:var(--soft)}
.tile b.word{font-size:17px;line-height:1.76}
.card+.grid2{margin-top:14px}
.grid2{display:grid;grid-template-columns:repeat(auto-fill,minmax(430px,1fr));gap:14px}
@media (max-width:520px){.grid2{grid-template-columns:1fr}}
figcaption{font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;color:var(--soft);margin:4px 0}
.key{display:inline-block;width:14px;height:3px;border-radius:2px;background:currentColor;
vertical-align:middle;margin-right:6px}.key.block{height:11px;width:11px;border-radius:3px}
.faint{opacity:.38}
.plot{position:relative;margin-top:6px}
svg{display:block;width:100%;height:auto;overflow:visible}
.grid{stroke:var(--line)}.axis{stroke:var(--axis)}
text{font:11px system-ui,sans-serif;fill:var(--mute);font-variant-numeric:tabular-nums}
text.label{fill:var(--ink);font-size:12px;font-weight:600}
.end{text-anchor:end}.mid{text-anchor:middle}
.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.faint{stroke-width:1.2}
.dot{fill:currentColor;stroke:var(--card);stroke-width:1.5}
path.mark{fill:var(--c6)}b.mark{color:var(--c6);font-weight:400}
.cursor{stroke:var(--axis);stroke-dasharray:3 3;visibility:hidden}
.tip{position:absolute;top:0;pointer-events:none;visibility:hidden;background:var(--card);
border:1px solid var(--axis);border-radius:8px;padding:5px 9px;font-size:12px;white-space:nowrap;
box-shadow:0 3px 12px rgba(0,0,0,.14);z-index:2}
.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}
.c6{color:var(--c6)}.c7{color:var(--c7)}.c8{color:var(--c8)}
rect{fill:currentColor}rect.lane{fill:var(--lane)}
rect.host{fill:none;stroke:var(--axis)}.border{stroke:var(--ink);stroke-width:2}
text.on{fill:#fff}text.big{font-size:15px;font-weight:600}text.small{font-size:10.5px}
.bar{display:flex;height:34px;border-radius:8px;overflow:hidden;gap:2px;margin:8px 0 10px}
.bar i{background:currentColor;min-width:2px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:13.5px;width:100%}
td,th{padding:4px 14px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:500}th.end{text-align:right}td.num{text-align:right;font-variant-numeric:tabular-nums}
td{overflow-wrap:anywhere}
details{margin-top:10px}summary{cursor:pointer;color:var(--soft)}
.columns{columns:3 300px;column-gap:28px}.columns div{break-inside:avoid;border-bottom:1px solid var(--line);
padding:3px 0;font-size:13.5px;display:flex;justify-content:space-between;gap:12px}
.columns span{color:var(--soft)}.columns code{overflow-wrap:anywhere;text-align:right}
code{font:12.5px ui-monospace,monospace}
footer{margin-top:36px;color:var(--mute);font-size:12.5px}
)css";

// Shows the values at the pointer, and switches the theme.
constexpr std::string_view script = R"js(
const units={number:v=>String(+v.toPrecision(5)),share:v=>(100*v).toPrecision(4)+' %',
count:v=>si(v,''),bytes:v=>si(v,'B'),bytes_per_s:v=>si(v,'B/s'),flops:v=>si(v,'FLOP/s'),
seconds:v=>v>=1?v.toPrecision(4)+' s':v>=1e-3?(v*1e3).toPrecision(4)+' ms':(v*1e6).toPrecision(4)+' us'};
function si(v,u){for(const[s,l]of[[1e12,'T'],[1e9,'G'],[1e6,'M'],[1e3,'k']])
if(Math.abs(v)>=s)return(v/s).toPrecision(4)+' '+l+u;return+v.toPrecision(4)+(u?' '+u:'')}
function nearest(xs,ys,x){let best=-1;for(let i=0;i<xs.length;i++)
if(ys[i]!==null&&(best<0||Math.abs(xs[i]-x)<Math.abs(xs[best]-x)))best=i;return best}
for(const figure of document.querySelectorAll('.chart')){
const data=JSON.parse(figure.querySelector('script').textContent);
const svg=figure.querySelector('svg'),tip=figure.querySelector('.tip'),cursor=figure.querySelector('.cursor');
const hide=()=>{tip.style.visibility=cursor.style.visibility='hidden'};
svg.addEventListener('pointerleave',hide);
svg.addEventListener('pointermove',event=>{
const box=svg.getBoundingClientRect(),scale=svg.viewBox.baseVal.width/box.width;
const at=(event.clientX-box.left)*scale;
if(at<data.left-6||at>data.right+6)return hide();
const x=data.x0+(at-data.left)/(data.right-data.left)*(data.x1-data.x0);
let step=null;const rows=[];
for(const one of data.series){const i=nearest(one.x,one.y,x);if(i<0)continue;
if(step===null)step=one.x[i];
const at=one.x[i]===step?'':' ('+data.x_name+' '+one.x[i]+')';
rows.push('<div><i class="key c'+one.colour+'"></i>'+one.name+' <b>'+units[data.unit](one.y[i])+'</b>'+at+'</div>')}
if(step===null)return hide();
const px=data.left+(step-data.x0)/(data.x1-data.x0)*(data.right-data.left);
cursor.setAttribute('x1',px);cursor.setAttribute('x2',px);
tip.innerHTML=data.x_name+' '+step+rows.join('');
const left=px/scale;
tip.style.left=left>box.width/2?'auto':(left+12)+'px';
tip.style.right=left>box.width/2?(box.width-left+12)+'px':'auto';
tip.style.visibility=cursor.style.visibility='visible'})}
document.getElementById('theme').addEventListener('click',()=>{
const root=document.documentElement,dark=root.dataset.theme?root.dataset.theme==='dark':
matchMedia('(prefers-color-scheme:dark)').matches;root.dataset.theme=dark?'light':'dark'});
)js";

}  // namespace

std::string document(std::string_view title, std::string_view body) {
  return fmt::format(R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{}</title><style>{}</style></head><body><main>
{}
</main><script>{}</script></body></html>
)",
                     escape(title), css, body, script);
}

}  // namespace train::page
