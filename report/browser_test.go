package report

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/color"
	"image/png"
	"maps"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"fisub/internal/longtest"
	"fisub/internal/plain"
	"fisub/internal/ui"
)

// A browser is a headless Chromium with one page.
type browser struct {
	t   testing.TB
	ctx context.Context

	dir   string
	files map[string]string // written pages by name

	mu     sync.Mutex
	faults []string // messages and requests seen since the last page was opened
}

// startBrowser skips the test if Chromium is missing.
func startBrowser(t testing.TB) *browser {
	t.Helper()
	longtest.CI(t, "starts a browser")
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		longtest.Missing(t, "chromium", "no chromium on the path")
	}
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(path), chromedp.DisableGPU}
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium does not start as root with its sandbox
	}
	b := &browser{t: t, dir: t.TempDir(), files: map[string]string{}}
	ctx, end := chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(options...),
		chromedp.WithListener(b.hear))
	t.Cleanup(end)
	b.ctx = ctx
	return b
}

// hear records events that a page must not cause.
func (b *browser) hear(e any) {
	switch e := e.(type) {
	case *network.EventRequestWillBeSent:
		if u := e.Request.URL; strings.HasPrefix(u, "file://") && strings.HasSuffix(u, ".html") {
			return
		}
	case *runtime.EventExceptionThrown, *runtime.EventConsoleAPICalled, *log.EventEntryAdded,
		*cdpage.EventJavascriptDialogOpening:
	default:
		return
	}
	text, err := json.Marshal(e)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, fmt.Sprintf("%T %s %v", e, text, err))
}

// open loads a file with the given screen width and color scheme, and returns the faults seen while loading.
func (b *browser) open(file string, width int, scheme string) []string {
	b.t.Helper()
	screen := emulation.SetDeviceMetricsOverrideParams{Width: int64(width), Height: 800, DeviceScaleFactor: 1,
		Mobile: width < 600}
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme",
		Value: scheme}}}
	_, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, screen)
	if err == nil {
		_, err = chromedp.Call(b.ctx, emulation.SetEmulatedMedia, media)
	}
	b.mu.Lock()
	b.faults = nil
	b.mu.Unlock()
	if err == nil {
		err = chromedp.Do(b.ctx, chromedp.Navigate((&url.URL{Scheme: "file", Path: file}).String()))
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.eval(`new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))`, nil)
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.faults)
}

// show writes a report unless it is written, and opens it. The page must not cause any faults.
func (b *browser) show(name string, width int, scheme string) {
	b.t.Helper()
	if b.files[name] == "" {
		write := counted(b.t).HTML
		if page := pages[name]; name == "five" {
			write = five(b.t).HTML
		} else if page != nil {
			write = page(b.t).HTML
		}
		b.files[name] = filepath.Join(b.dir, name+".html")
		if err := os.WriteFile(b.files[name], []byte(rendered(b.t, write)), 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	if faults := b.open(b.files[name], width, scheme); len(faults) > 0 {
		b.t.Errorf("%s at %d px: while it opened: %s", name, width, strings.Join(faults, "\n"))
	}
}

// eval evaluates an expression in the page.
func (b *browser) eval(expression string, result any) {
	b.t.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[json.RawMessage](expression, chromedp.EvalAwaitPromise))
	if err == nil && result != nil {
		err = json.Unmarshal(text, result)
	}
	if err != nil {
		b.t.Fatalf("in the page: %v", err)
	}
}

// picture saves a screenshot of the page.
func (b *browser) picture(file string) {
	b.t.Helper()
	data, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(file, data, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// audit checks a page on a screen of %d pixels: overflow, contrast of text and marks with their background, text size,
// ids, links, tables and headings.
const audit = `((width) => {
  document.querySelectorAll('details').forEach(d => d.open = true)
  const faults = new Set()
  const rgb = s => { const m = s.match(/rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)/); return m && (m[4] === undefined || +m[4] > 0) ? [+m[1], +m[2], +m[3]] : null }
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 }); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  const contrast = (a, b) => { const x = light(a), y = light(b); return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05) }
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c) return c } return [255, 255, 255] }
  const where = e => e.tagName + '.' + (e.getAttribute('class') || '') + ' "' + e.textContent.trim().slice(0, 30) + '"'
  // On a phone only tables and logs scroll sideways, each within itself. A scrolled table keeps the text and the rules
  // of its first column in line with the other columns.
  const phone = () => {
    for (const e of document.querySelectorAll('html, body *:not(.scroll, pre)')) {
      if (e.closest('title, desc') || !e.checkVisibility() || e.parentElement?.closest('.scroll, pre')) continue
      if (e.scrollWidth > innerWidth || !(e instanceof SVGElement) && getComputedStyle(e).display != 'inline' && e.scrollWidth > e.clientWidth + 1) faults.add('wider than its box: ' + where(e))
      if (e.getBoundingClientRect().right > innerWidth + 0.5) faults.add('beyond the right edge: ' + where(e))
    }
    for (const e of document.querySelectorAll('.scroll, pre')) {
      if (!e.querySelector('table') && e.tagName != 'PRE' && e.scrollWidth > e.clientWidth) faults.add('scrolls: ' + where(e))
      if (e.getBoundingClientRect().right > innerWidth) faults.add('a scrolling region beyond the right edge: ' + where(e))
    }
    const baseline = c => { // an empty inline block ends at the baseline of the first line
      const s = document.createElement('span')
      s.style.display = 'inline-block'
      c.prepend(s)
      const y = s.getBoundingClientRect().bottom
      s.remove()
      return y
    }
    for (const scroll of document.querySelectorAll('.scroll:has(thead)')) {
      scroll.scrollLeft = 1000
      for (const row of [...scroll.querySelectorAll('tr')].filter(r => r.checkVisibility())) {
        const first = row.cells[0], style = getComputedStyle(first), off = baseline(first) - baseline(row.cells[1])
        if (row.parentElement.tagName == 'TBODY' && Math.abs(off) > 0.5) faults.add('text of the first column off by ' + off + ' px: ' + where(row))
        if (style.position == 'sticky' && style.borderCollapse != 'separate') faults.add('a rule scrolls out from under the first column')
        if (style.borderBottomWidth != '1px') faults.add('no rule below ' + where(first))
      }
      scroll.scrollLeft = 0
    }
  }
  let texts = 0, marks = 0
  if (document.documentElement.scrollWidth > width || document.documentElement.clientWidth != width) {
    for (const e of document.body.querySelectorAll('*')) if (e.getBoundingClientRect().right > width + 1 && !e.parentElement.closest('.scroll, pre')) faults.add('beyond the right edge: ' + where(e))
    faults.add('the page is ' + document.documentElement.scrollWidth + ' px wide, the screen ' + width)
  }
  for (const e of document.body.querySelectorAll('*')) {
    if (e.closest('title, desc') || !e.checkVisibility()) continue
    const style = getComputedStyle(e), inSVG = e instanceof SVGElement
    if ([...e.childNodes].some(n => n.nodeType == 3 && n.data.trim())) {
      texts++
      let size = parseFloat(style.fontSize)
      if (inSVG && e.getScreenCTM) size *= e.getScreenCTM().a
      if (size < 11) faults.add('text of ' + size.toFixed(1) + ' px: ' + where(e))
      const color = rgb(inSVG ? style.fill : style.color), ratio = contrast(color, behind(e))
      if (ratio < 4.5) faults.add('contrast of text ' + ratio.toFixed(2) + ': ' + where(e))
    }
    if (inSVG && e.matches('.mark > path, .bins, .official, .line, .cell:not(.u), .pattern.u')) {
      marks++
      const color = e.matches('.cell') ? rgb(style.fill) : rgb(style.stroke) || rgb(style.fill), band = e.matches('.official, .bins') ? document.querySelector('.band') : null
      for (const back of [behind(e), band && rgb(getComputedStyle(band).fill)]) {
        if (back && color && contrast(color, back) < 3) faults.add('contrast of a mark ' + contrast(color, back).toFixed(2) + ': ' + where(e))
      }
    }
  }
  const ids = new Set()
  for (const e of document.querySelectorAll('[id]')) {
    if (ids.has(e.id)) faults.add('id twice: ' + e.id)
    ids.add(e.id)
  }
  for (const a of document.querySelectorAll('a')) if (!document.getElementById(a.getAttribute('href').slice(1))) faults.add('link to nothing: ' + a.getAttribute('href'))
  for (const e of document.querySelectorAll('[aria-labelledby]')) for (const id of e.getAttribute('aria-labelledby').split(' ')) if (!document.getElementById(id)) faults.add('label that is missing: ' + id)
  for (const t of document.querySelectorAll('table')) {
    if (!t.caption || !t.caption.textContent.trim()) faults.add('table without a caption')
    if ([...t.querySelectorAll('th')].some(h => !h.scope)) faults.add('heading without a scope in ' + t.id)
    const n = t.tHead ? t.tHead.rows[0].cells.length : 2
    if ([...t.tBodies[0].rows].some(r => r.cells.length != n)) faults.add('row of another length in ' + t.id)
  }
  if (width < 600) phone()
  const levels = [...document.querySelectorAll('h1, h2, h3, h4')].map(h => +h.tagName[1])
  if (levels.filter(l => l == 1).length != 1) faults.add('not one h1')
  if (levels.some((l, i) => i > 0 && l > levels[i - 1] + 1)) faults.add('a level of headings is left out')
  if (document.documentElement.lang != 'en') faults.add('no language')
  for (const tag of ['header', 'nav', 'main', 'footer']) if (document.querySelectorAll('body > ' + tag).length != 1) faults.add('not one ' + tag)
  if (document.querySelectorAll('script').length != 1 || document.querySelector('link, img, iframe, object, embed, form')) faults.add('an element that does not belong here')
  if (document.title == 'owned') faults.add('a script ran')
  return {faults: [...faults].slice(0, 20), texts, marks}
})(%d)`

// audit returns the faults of the page.
func (b *browser) audit(width int) (found struct {
	Faults       []string
	Texts, Marks int
}) {
	b.t.Helper()
	b.eval(fmt.Sprintf(audit, width), &found)
	return found
}

// Each page opens without console messages and requests, on a phone and a desktop, in a light and a dark scheme, and
// passes the audit. FISUB_REPORT_DIR keeps the screenshots.
func TestBrowser(t *testing.T) {
	b := startBrowser(t)
	kept := os.Getenv("FISUB_REPORT_DIR")
	for name, page := range pages {
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int{360, 1280} {
				if name != "decode" && name != "hundred" && (scheme == "dark") != (width == 1280) {
					continue // decode and hundred cover all colours and everything that depends on the width
				}
				t.Run(fmt.Sprintf("%s/%s/%d", name, scheme, width), func(t *testing.T) {
					b.t = t
					b.show(name, width, scheme)
					if kept != "" {
						b.picture(filepath.Join(kept, fmt.Sprintf("%s-%s-%d.png", name, scheme, width)))
					}
					found := b.audit(width)
					for _, f := range found.Faults {
						t.Error(f)
					}
					if found.Texts < 40 {
						t.Errorf("texts seen: got %d, want the page's", found.Texts)
					}
					if page(t).Runs[0].Timed && found.Marks < 3 {
						t.Errorf("marks seen: got %d, want the charts'", found.Marks)
					}
				})
			}
		}
	}
}

// The page of counters passes the audit on a phone and a desktop. Its lines can be sorted by cost, and a link to a line
// highlights it.
func TestBrowserCounted(t *testing.T) {
	b := startBrowser(t)
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{360, 1280} {
			b.show("counted", width, scheme)
			if kept := os.Getenv("FISUB_REPORT_DIR"); kept != "" {
				b.picture(filepath.Join(kept, fmt.Sprintf("counted-%s-%d.png", scheme, width)))
			}
			for _, f := range b.audit(width).Faults {
				t.Errorf("%s at %d px: %s", scheme, width, f)
			}
			var got []string
			b.eval(`(() => {
  const table = document.getElementById('k1-f1-source'), back = row => getComputedStyle(row.cells[0]).backgroundColor
  const head = [...table.tHead.rows[0].cells].find(h => h.textContent == 'Cost').querySelector('button')
  head.click()
  head.click()
  const rows = [...table.tBodies[0].rows], plain = back(rows[2])
  location.hash = 'k1-f1-30'
  return [rows[0].cells[0].textContent, String(back(rows[0]) != plain), String(back(document.getElementById('k1-f1-30').parentElement) != plain)]
})()`, &got)
			if want := []string{"20", "true", "true"}; !slices.Equal(got, want) {
				t.Errorf("%s at %d px: got line, mark of it and of the target %v, want %v", scheme, width, got, want)
			}
		}
	}
}

// The audit and the watch over console and network can fail.
func TestBrowserFindsFaults(t *testing.T) {
	b := startBrowser(t)
	for _, test := range []struct{ name, change, want string }{
		{"pale text", `document.querySelector('.summary').style.color = '#999'`, "contrast of text 2."},
		{"pale marks", `document.querySelector('svg.chart .mark.solution path').style.stroke = '#eee'`,
			"contrast of a mark 1."},
		{"small text", `document.querySelector('svg.chart text').style.fontSize = '9px'`, "text of "},
		{"a wide element", `document.querySelector('.scroll').style.overflow = 'visible'`, "the page is "},
		{"no caption", `document.querySelector('caption').textContent = ''`, "table without a caption"},
		{"no scope", `document.querySelector('th').removeAttribute('scope')`, "heading without a scope"},
		{"a second id", `document.querySelector('main').id = 'figures'`, "id twice: figures"},
		{"a link to nothing", `document.querySelector('nav a').setAttribute('href', '#no')`, "link to nothing: #no"},
		{"an image", `document.body.append(document.createElement('img'))`, "an element that does not belong here"},
		{"a wide child", `document.querySelector('.summary').style.whiteSpace = 'nowrap'`, "wider than its box: "},
		{"a low cell", `document.querySelector('tbody td').style.cssText = 'position: relative; top: 3px'`, "text of the first column off by "},
		{"no rule", `document.querySelector('thead th').style.border = 'none'`, "no rule below TH"},
	} {
		b.show("decode", 360, "light")
		b.eval(test.change+`, 1`, nil)
		if found := b.audit(360); !slices.ContainsFunc(found.Faults, func(f string) bool { return strings.HasPrefix(f, test.want) }) {
			t.Errorf("%s: got %q, want %q", test.name, found.Faults, test.want)
		}
	}
	page, err := os.ReadFile(b.files["decode"])
	if err != nil {
		t.Fatal(err)
	}
	for name, insert := range map[string]string{"a script": `<script>console.log(1)</script>`,
		"a picture": `<img src="http://127.0.0.1:9/x.png">`,
		"a font":    `<style>@import url(http://127.0.0.1:9/x.css)</style>`} {
		changed := filepath.Join(b.dir, "changed.html")
		if err := os.WriteFile(changed, []byte(strings.Replace(string(page), "<main>", insert+"<main>", 1)),
			0o644); err != nil {
			t.Fatal(err)
		}
		if faults := b.open(changed, 360, "light"); len(faults) == 0 {
			t.Errorf("%s: got no fault", name)
		}
	}
}

// helpers precede the scripts of properties.
const helpers = `
  const all = (selector, e = document) => [...e.querySelectorAll(selector)], box = e => e.getBoundingClientRect()
  const middle = e => (box(e).left + box(e).right) / 2, table = document.getElementById('%s')
`

// charts returns the faults of the charts on a page: rows of charts narrower than %d pixels or wider than the screen,
// labels of ticks that overlap or differ from %q, unless that is "", marks that are not above a tick, and marks and
// texts outside of their plot and page.
const charts = `
  const faults = [], rows = {}, want = %q
  for (const r of all('svg.chart').map(box)) rows[r.top + scrollY] = (rows[r.top + scrollY] || 0) + r.width
  for (const w of Object.values(rows)) if (w < %d || w > innerWidth) faults.push('charts of ' + w + ' px')
  for (const chart of all('svg.chart')) {
    const texts = all('text.mid:not(.name)', chart).filter(e => e.checkVisibility()), ticks = texts.map(e => e.textContent).join(' ')
    texts.forEach((e, i) => { if (i > 0 && box(texts[i - 1]).right + 3 > box(e).left) faults.push(texts[i - 1].textContent + ' touches ' + e.textContent) })
    if (want && ticks != want) faults.push('ticks ' + ticks)
    const at = all('.tick', chart).filter(e => box(e).height > 3).map(middle), plot = box(chart.querySelector('.plot'))
    for (const m of all('.mark > path[transform]', chart).map(middle)) {
      if (at.length > 8 && at.length < 11 && document.title.includes('decode') && !at.some(t => Math.abs(t - m) < 0.6)) faults.push('a mark at ' + m + ' above no tick of ' + at)
      if (m < plot.left || m > plot.right) faults.push('a mark outside of its plot')
    }
    for (const e of all('text', chart)) if (e.checkVisibility() && (box(e).left < 0 || box(e).right > innerWidth)) faults.push('outside of the page: ' + e.textContent)
  }
  return faults`

// Each property of a page is the result of a script.
func TestBrowserProperties(t *testing.T) {
	b := startBrowser(t)
	type property struct {
		name, pages string // pages are separated by spaces
		width       int
		table       string // id of the table of the script, or ""
		script      string // body of a function
		want        string
	}
	const (
		firstColumns = `return all('thead th', table).filter(c => box(c).right <= box(table.parentElement).right + 0.5).map(c => c.textContent)`
		cross        = `const chart = document.querySelector('svg.chart'), mark = all('.mark.solution', chart)[4], r = box(mark.lastElementChild)
  const move = (x, y) => chart.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: y}))
  const x = middle(mark.lastElementChild), path = chart.querySelector('.cross')
  move(x, (r.top + r.bottom) / 2)
  const off = box(chart.querySelector('.plot')).left + +path.getAttribute('d').match(/M([\d.]+) [\d.]+v/)[1] - x
  const near = all('.near', chart).map(m => m.getAttribute('x') == mark.getAttribute('x'))
  move(box(chart).left + 10, (r.top + r.bottom) / 2)
  return [Math.abs(off) <= 0.6, near, path.getAttribute('d')]`
		tall = `const scroll = table.parentElement
  document.documentElement.style.scrollBehavior = 'auto'
  scroll.scrollIntoView()
  scroll.scrollTop = 1000
  scroll.scrollLeft = 200
  const r = box(scroll), at = (x, y) => document.elementFromPoint(r.left + x, r.top + y).closest('th, td').textContent
  return [at(5, 15), at(5, 300).slice(0, 6), r.height <= 800]`
		kernelNames = `const first = all('tr', table).map(r => r.cells[0]), kinds = new Set(first.map(c => getComputedStyle(c).position == 'sticky'))
  return [box(first[0]).width <= %d, kinds.size]`
		pictures = `const faults = []
  for (const map of all('svg.map')) {
    const across = all('text.mid', map), down = all('text.end', map), plot = box(map.querySelector('svg')), names = all('text.name', map)
    for (const list of [across, down, names]) list.forEach((e, i) => {
      for (const f of list.slice(0, i)) if (box(f).right + 2 > box(e).left && box(e).right > box(f).left && box(f).bottom - 3 > box(e).top && box(e).bottom - 3 > box(f).top) faults.push(f.textContent + ' touches ' + e.textContent)
    })
    for (const e of all('text', map)) if (box(e).left < 0 || box(e).right > innerWidth) faults.push('outside of the page: ' + e.textContent)
    if (plot.width < 30 || plot.right > innerWidth) faults.push('a plot of ' + plot.width + ' px')
    for (const e of all('path', map)) if (box(e).left < plot.left - 2 || box(e).right > plot.right + 2 || box(e).bottom > plot.bottom + 2) faults.push('cells outside of the plot')
  }
  return [all('svg.map').length, faults.join()]`
		brightness = `const light = s => s.match(/[\d.]+/g).slice(0, 3).map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0.05)
  const fill = c => light(getComputedStyle(document.querySelector('svg.map .cell.' + c)).fill), list = [light(getComputedStyle(document.body).backgroundColor), ...['a', 'b', 'c'].map(fill)]
  return list.slice(1).map((v, i) => Math.max(v / list[i], list[i] / v)).filter(r => r < 1.8)`
		columns = `const at = id => box(document.getElementById('r1-' + id))
  return [at('failures').left > box(document.getElementById('r1-workloads').parentElement).right, Math.abs(at('failures').top - at('verdicts').top) < 1]`
		kernelEdges = `return [table.parentElement.scrollWidth - table.parentElement.clientWidth, new Set(all('tr > :last-child', table).map(c => getComputedStyle(c).paddingLeft)).size]`
		histograms  = `all('details').forEach(d => d.open = true)
  const texts = all('.hist text.mid'), columns = getComputedStyle(document.querySelector('.grid')).gridTemplateColumns.split(' ').length
  const tops = new Set(all('.hist svg').map(s => Math.round(box(s).top)))
  return [tops.size == Math.ceil(10 / columns), 12 * texts[0].getScreenCTM().a <= 13, texts.some(t => t.textContent == '0 %')]`
		definitions = `const dts = all('.defs dt'), top = e => { const r = document.createRange(); r.selectNodeContents(e); return r.getClientRects()[0].top }
  return [dts.map(d => d.textContent), dts.filter(d => /^[a-z]/.test(d.nextElementSibling.textContent) || Math.abs(top(d) - top(d.nextElementSibling)) > 1).length]`
		sorted = `const head = all('thead th', table).find(h => h.textContent == 'Median'), first = () => parseInt(table.tBodies[0].rows[0].cells[head.cellIndex].title)
  head.querySelector('button').click()
  const least = first()
  head.querySelector('button').click()
  const greatest = first(), input = document.querySelector('.filter input')
  input.value = 'incorrect'
  input.dispatchEvent(new Event('input'))
  const kept = [...table.tBodies[0].rows].filter(r => !r.hidden).length
  document.querySelector('svg.chart .mark[data-w]').dispatchEvent(new MouseEvent('click', {bubbles: true}))
  return [String(least), String(greatest), kept, all('tr.selected', table).length, document.querySelector('.filter [role=status]').textContent]`
	)
	least, greatest := math.Inf(1), 0.0
	for _, w := range pages["hundred"](t).Runs[0].Workloads {
		if w.Samples != nil {
			least, greatest = min(least, w.Samples.MedianNS), max(greatest, w.Samples.MedianNS)
		}
	}
	list := []property{
		{"the script sorts and filters, and a click on a mark highlights its row", "hundred", 1280, "r1-workloads", sorted,
			fmt.Sprintf("[%d %d 2 1 2 of 100]", int(least), int(greatest))},
		{"the pointer on a chart draws a cross and highlights the marks there", "decode", 400, "", cross,
			"[true [true true] ]"},
		{"the pointer on a chart draws a cross and highlights the marks there", "decode", 1280, "", cross,
			"[true [true true] ]"},
		{"a phone shows the errors of a run on the virtual GPU", "emulated", 400, "r1-workloads",
			`return all('tr', table).slice(0, 2).map(r => [...r.cells].filter(c => box(c).right <= innerWidth).map(c => c.textContent))`,
			"[[Workload Verdict Max abs Max rel num_seqs] [00000000 PASSED 1.50e-07 3.00e-04 1]]"},
		{"no timings of a run on the virtual GPU", "emulated", 400, "",
			`return document.body.innerText.match(/trials|µs/g)`, "<nil>"},
		{"a phone shows the main figures", "decode", 400, "r1-workloads", firstColumns,
			"[Workload Verdict Median ± batch_size]"},
		{"pictures fit, with labels that do not touch", "failed", 400, "", pictures, "[4 ]"},
		{"pictures fit, with labels that do not touch", "failed", 1280, "", pictures, "[4 ]"},
		{"neighbouring classes of a picture differ in brightness, and each is distinct from the page", "failed", 400, "", brightness, "[]"},
		{"failures are next to the workloads where there is room", "failed emulated", 1280, "", columns, "[true true]"},
		{"failures are below the workloads on a phone", "failed emulated", 400, "", columns, "[false false]"},
		{"a phone shows the main figures", "hundred", 400, "r1-workloads", firstColumns, "[Workload Verdict Median ±]"},
		{"a phone shows the main figures", "two", 400, "d1-workloads", firstColumns,
			"[Workload Verdict on B B/A batch_size]"},
		{"a phone shows the main figures", "two", 400, "overview", firstColumns, "[Run Solution Passed Mean latency]"},
		{"a phone shows the main figures", "two", 400, "configurations", firstColumns,
			"[Fact 20261121-113455-189e32 20261121-113501-145b98]"},
		{"a phone shows the key figures in two columns", "decode emulated hundred two", 400, "",
			`return new Set(all('.key dd').map(d => box(d).left)).size`, "2"},
		{"lines below a heading break between facts only", "emulated decode", 400, "",
			`return all('.lines > span:not(.dot)').filter(s => {
    const r = document.createRange()
    r.selectNodeContents(s)
    return new Set([...r.getClientRects()].map(r => r.top)).size > 1
  }).map(s => s.textContent)`, "[]"},
		{"the headings of a long table stay in view", "hundred", 400, "r1-workloads", tall, "[Workload 000000 true]"},
		{"the headings of a long table stay in view", "hundred", 1280, "r1-workloads", tall, "[Workload 000000 true]"},
		{"no short table scrolls vertically", "decode", 1280, "",
			`return all('.scroll').filter(s => s.scrollHeight > s.clientHeight + 1).length`, "0"},
		{"the first column of kernels is as wide as the names", "two", 400, "r1-kernels", fmt.Sprintf(kernelNames, 160),
			"[true 1]"},
		{"the first column of kernels is as wide as the names", "decode hundred", 400, "r1-kernels",
			fmt.Sprintf(kernelNames, 240), "[true 1]"},
		{"the table of kernels fits, and its last column has one edge", "two decode", 1280, "r1-kernels", kernelEdges,
			"[0 1]"},
		{"the table of kernels fits, and its last column has one edge", "hundred", 1920, "r1-kernels", kernelEdges,
			"[0 1]"},
		{"marks of workloads with one value of the axis overlap by less than half", "hundred", 1280, "",
			`return all('svg.chart').map(chart => {
    const marks = all('.mark.solution', chart).map(m => box(m.lastElementChild)).sort((a, b) => a.left - b.left)
    const steps = marks.slice(1).map((m, i) => m.left - marks[i].left).sort((a, b) => a - b)
    return steps[Math.floor(steps.length / 2)] / marks[0].width >= 0.7
  })`, "[true true]"},
		{"the name of a vertical axis starts below the title", "decode", 1280, "",
			`return all('svg.chart').map(c => box(c.querySelector('text.name:not(.mid)')).left - box(c.parentElement.querySelector('figcaption')).left).filter(x => Math.abs(x) > 1)`,
			"[]"},
		{"histograms are in rows, and their text is no larger than notes", "decode", 1280, "", histograms,
			"[true true true]"},
		{"histograms are in rows, and their text is no larger than notes", "decode", 1920, "", histograms,
			"[true true true]"},
		{"the footer defines each column once, on evenly spaced lines", "two", 1280, "", definitions,
			"[[Verdict Max abs, max rel Median, latency ± Copy GB/s Warm L2 Faster, slower Same, unclear] 0]"},
		{"the footer defines each column once, on evenly spaced lines", "emulated", 1280, "", definitions,
			"[[Verdict Max abs, max rel Matched] 0]"},
		{"the footer defines each column once, on evenly spaced lines", "decode", 1280, "", definitions,
			"[[Verdict Max abs, max rel Median, latency ± Copy GB/s Warm L2 Speed-up, contest score] 0]"},
		{"the footer defines each column once, on evenly spaced lines", "hundred", 1280, "", definitions,
			"[[Verdict Max abs, max rel Median, latency ± Copy GB/s Peak Warm L2 Speed-up, contest score] 0]"},
	}
	for page, widths := range map[string][]int{"two": {360, 400, 700, 1280, 1920}, "one": {400, 1280, 1920},
		"decode": {400, 700, 1280, 1920}, "hundred": {360, 1280, 1920}} {
		for _, width := range widths {
			least := map[int]int{360: 320, 400: 360, 700: 640, 1280: 1000, 1920: 1700}[width] // of all charts in a row
			ticks := ""
			switch {
			case page != "two" && page != "decode":
			case width > 600:
				ticks = "1 2 4 8 16 32 48 64 128 256"
			default:
				ticks = "1 2 4 8 16 32 64 128 256"
			}
			list = append(list, property{"charts", page, width, "", fmt.Sprintf(charts, ticks, least), "[]"})
		}
	}
	for _, p := range list {
		for _, page := range strings.Fields(p.pages) {
			b.show(page, p.width, "light")
			var got any
			b.eval(`(() => {`+fmt.Sprintf(helpers, p.table)+p.script+`})()`, &got)
			if fmt.Sprint(got) != p.want {
				t.Errorf("%s: %s at %d px: got %v, want %s", p.name, page, p.width, got, p.want)
			}
		}
	}
}

// The edge of a table that scrolls is shaded, not barred, and a table that fits has no shadow.
func TestBrowserShadow(t *testing.T) {
	b := startBrowser(t)
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{400, 1280} {
			b.show("two", width, scheme)
			var box struct{ X, Y, Height int } // of the table's edge
			b.eval(`(() => {
  const table = document.getElementById('r1-workloads'), r = table.parentElement.getBoundingClientRect()
  table.style.visibility = 'hidden'
  return {x: Math.trunc(r.right + scrollX - 40), y: Math.trunc(r.top + scrollY), height: Math.ceil(r.height) + 1}
})()`, &box)
			data, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
			if err != nil {
				t.Fatal(err)
			}
			img, err := png.Decode(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			grey := func(x, y int) float64 { return float64(color.GrayModel.Convert(img.At(x, y)).(color.Gray).Y) }
			page, darkest := grey(2, 2), 255.0
			if edge := grey(box.X+39, box.Y+box.Height/2); math.Abs(edge-page) > 0.04*page+1 {
				t.Errorf("%s, %d px: the shadow ends with %.0f at the edge, want the page's %.0f", scheme, width, edge, page)
			}
			for i := range 40 * box.Height {
				darkest = min(darkest, grey(box.X+i%40, box.Y+i/40))
			}
			if soft := darkest < page && darkest >= 0.8*page-10; width == 400 && !soft || width == 1280 && darkest != page {
				t.Errorf("%s, %d px: got %.0f on %.0f, want a soft shadow on the phone only", scheme, width, darkest, page)
			}
		}
	}
}

// The page holds the run's figures to the last digit, and shows them in fisub's usual format.
func TestBrowserFigures(t *testing.T) {
	b := startBrowser(t)
	for _, name := range []string{"decode", "hundred", "places"} {
		run := pages[name](t).Runs[0]
		b.show(name, 1280, "light")
		var rows []map[string][2]string // text and title by heading
		b.eval(`(() => { const head = [...document.querySelectorAll('#r1-workloads thead th')].map(h => h.textContent)
  return [...document.querySelectorAll('#r1-workloads tbody tr')].map(r => Object.fromEntries([...r.cells].map((c, i) => [head[i], [c.textContent, c.title]]))) })()`, &rows)
		if len(rows) != len(run.Rows) {
			t.Fatalf("%s: rows: got %d, want %d", name, len(rows), len(run.Rows))
		}
		for i, row := range run.Rows { // the rows of the run folder
			check := func(column, shown, exact string) {
				t.Helper()
				if c, ok := rows[i][column]; !ok || c[0] != shown || !strings.HasPrefix(c[1]+" ", exact) {
					t.Errorf("%s: workload %s: %s: got %q, want %q, %q", name, row.UUID, column, c, shown, exact)
				}
			}
			exactly := func(v float64, unit string) string { return strconv.FormatFloat(v, 'f', -1, 64) + unit }
			check("Workload", plain.Short(row.UUID), row.UUID+" ")
			check("Verdict", string(row.Evaluated.Status()), " ")
			s := row.Samples
			if s == nil {
				check("Median", "-", " ")
				continue
			}
			check("Median", ui.Micros(s.MedianNS), exactly(s.MedianNS, " ns "))
			check("Median", ui.Micros(*row.Evaluated.Latency()*1e6), exactly(s.MedianNS, " ns "))
			check("±", ui.Spread(s.Interval), fmt.Sprintf("%s ns, n %d, median of all timings from %s ns to %s ns ",
				exactly(s.MedianNS, ""), s.N, exactly(s.Interval.LoNS, ""), exactly(s.Interval.HiNS, "")))
			check("Min", ui.Micros(float64(s.MinNS)), fmt.Sprint(s.MinNS, " ns "))
			check("Copy", ui.Percent(s.CopyShare), exactly(s.CopyShare, "; "))
			check("GB/s", fmt.Sprintf("%.0f", s.Bandwidth), exactly(s.Bandwidth, " GB/s "))
			if s.PeakShare > 0 {
				check("Peak", ui.Percent(s.PeakShare), exactly(s.PeakShare, " "))
			}
			check("Warm L2", ui.Micros(s.Warm.MedianNS)+" ± "+ui.Spread(s.Warm.Interval), exactly(s.Warm.MedianNS, " ns, "))
			abs, _ := row.Evaluated.Errors()
			check("Max abs", fmt.Sprintf("%.2e", *abs), strconv.FormatFloat(*abs, 'g', -1, 64)+" ")
			if x := row.Evaluated.Speedup(); x != nil {
				check("Speed-up", ui.Times(*x), exactly(*x, " "))
				check(run.Run.Run.Baseline.Name, ui.Micros(s.Baseline.MedianNS)+" ± "+ui.Spread(s.Baseline.Interval),
					exactly(s.Baseline.MedianNS, " ns, "))
			}
		}
		var key map[string]string
		b.eval(
			`Object.fromEntries([...document.querySelectorAll('.key div')].map(d => [d.querySelector('dt').textContent, d.querySelector('dd').textContent]))`, &key)
		passed, total := run.Passed()
		want := map[string]string{"passed": fmt.Sprintf("%d of %d", passed, total)}
		if !run.Split() {
			want["mean latency, cold L2"] = ui.Micros(run.Official())
		}
		if d := run.Done; d.Score != nil {
			want["mean speed-up over "+run.Run.Run.Baseline.Name] = fmt.Sprintf("%.3f", *d.Score)
		}
		delete(key, "finding")
		delete(key, "findings")
		if !maps.Equal(key, want) {
			t.Errorf("%s: key figures: got %v, want %v", name, key, want)
		}
	}
}

// axe-core, which applies the rules of WCAG, finds nothing on a phone and a desktop.
func TestBrowserAxe(t *testing.T) {
	b := startBrowser(t)
	script, err := os.ReadFile(os.Getenv("FISUB_AXE"))
	if err != nil {
		longtest.Missing(t, "axe", "no axe-core in $FISUB_AXE, which scripts/env sets")
	}
	for _, name := range []string{"decode", "two", "emulated", "failed", "five", "counted"} {
		for width, scheme := range map[int]string{400: "dark", 1280: "light"} {
			if name == "five" && width == 400 {
				continue // it takes a minute and is a larger version of two
			}
			b.show(name, width, scheme)
			b.eval(`document.querySelectorAll('details').forEach(d => d.open = true)`, nil)
			b.eval(string(script)+"\n;0", nil)
			var found struct {
				Passes     int
				Violations []string
			}
			// axe-core takes minutes for the contrast of thousands of cells; TestBrowser checks it.
			b.eval(`axe.run(document, {resultTypes: ['violations'], rules: {'color-contrast': {enabled: `+fmt.Sprint(name != "five")+`}}}).then(r => ({passes: r.passes.length,
  violations: r.violations.map(v => v.id + ': ' + v.help + ': ' + v.nodes.slice(0, 3).map(n => n.html.slice(0, 160)).join(' | '))}))`, &found)
			for _, v := range found.Violations {
				t.Errorf("%s at %d px, %s: %s", name, width, scheme, v)
			}
			if found.Passes < 15 {
				t.Errorf("%s: %d rules applied, want 15 or more", name, found.Passes)
			}
		}
	}
}

// BenchmarkFirstPaint opens a page of five runs with 100 workloads each.
func BenchmarkFirstPaint(b *testing.B) {
	page := startBrowser(b)
	sum := 0.0
	for b.Loop() {
		page.show("five", 1280, "light")
		var ms float64
		page.eval(`performance.getEntriesByName('first-contentful-paint')[0].startTime`, &ms)
		sum += ms
	}
	b.ReportMetric(sum/float64(b.N), "ms-to-first-paint")
}
