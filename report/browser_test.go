package report

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/color"
	"image/png"
	"math"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	"fisub/internal/ui"
)

// A browser is a headless Chromium with one page.
type browser struct {
	t   testing.TB
	ctx context.Context

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
	b := &browser{t: t}
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

// audit checks every visible element on a screen of %d pixels: overflow, contrast of text and marks with their
// background, and text size.
const audit = `((width) => {
  document.querySelectorAll('details').forEach(d => d.open = true)
  const faults = new Set()
  const rgb = s => { const m = s.match(/rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)/); return m && (m[4] === undefined || +m[4] > 0) ? [+m[1], +m[2], +m[3]] : null }
  const light = c => { const [r, g, b] = c.map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4 }); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  const contrast = (a, b) => { const x = light(a), y = light(b); return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05) }
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c) return c } return [255, 255, 255] }
  const where = e => e.tagName + '.' + (e.getAttribute('class') || '') + ' "' + e.textContent.trim().slice(0, 30) + '"'
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
    if (inSVG && e.matches('.mark > path, .bins, .official, .line')) {
      marks++
      const color = rgb(style.stroke) || rgb(style.fill), band = e.matches('.official, .bins') ? document.querySelector('.band') : null
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
  const levels = [...document.querySelectorAll('h1, h2, h3, h4')].map(h => +h.tagName[1])
  if (levels.filter(l => l == 1).length != 1) faults.add('not one h1')
  if (levels.some((l, i) => i > 0 && l > levels[i - 1] + 1)) faults.add('a level of headings is left out')
  if (document.documentElement.lang != 'en') faults.add('no language')
  for (const tag of ['header', 'nav', 'main', 'footer']) if (document.querySelectorAll('body > ' + tag).length != 1) faults.add('not one ' + tag)
  if (document.querySelectorAll('script').length != 1 || document.querySelector('link, img, iframe, object, embed, form')) faults.add('an element that does not belong here')
  if (document.title == 'owned') faults.add('a script ran')
  return {faults: [...faults].slice(0, 20), texts, marks}
})(%d)`

// Each page opens without console messages and requests, on a phone and a desktop, in a light and a dark scheme, and
// passes the audit. FISUB_REPORT_DIR keeps the screenshots.
func TestBrowser(t *testing.T) {
	b := startBrowser(t)
	dir := t.TempDir()
	kept := os.Getenv("FISUB_REPORT_DIR")
	for name, page := range pages {
		r := page(t)
		file := filepath.Join(dir, name+".html")
		writePage(t, r, file)
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int{360, 1280} {
				if name != "decode" && name != "hundred" && (scheme == "dark") != (width == 1280) {
					continue // decode and hundred cover all colours and everything that depends on the width
				}
				t.Run(fmt.Sprintf("%s/%s/%d", name, scheme, width), func(t *testing.T) {
					b.t = t
					if faults := b.open(file, width, scheme); len(faults) > 0 {
						t.Errorf("while it opened: %s", strings.Join(faults, "\n"))
					}
					if kept != "" {
						b.picture(filepath.Join(kept, fmt.Sprintf("%s-%s-%d.png", name, scheme, width)))
					}
					var found struct {
						Faults       []string `json:"faults"`
						Texts, Marks int
					}
					b.eval(fmt.Sprintf(audit, width), &found)
					for _, f := range found.Faults {
						t.Error(f)
					}
					if found.Texts < 40 {
						t.Errorf("texts looked at: got %d, want the page's", found.Texts)
					}
					if r.Runs[0].Timed && found.Marks < 3 {
						t.Errorf("marks looked at: got %d, want the charts'", found.Marks)
					}
				})
			}
		}
	}
	b.t = t
}

// On a phone only tables and logs scroll sideways, each within itself. A scrolled table keeps the text and the rules of
// its first column in line with the other columns.
func TestBrowserNarrow(t *testing.T) {
	b := startBrowser(t)
	for _, name := range []string{"two", "emulated", "decode", "contest", "hundred", "three", "hostile"} {
		file := filepath.Join(t.TempDir(), name+".html")
		writePage(t, pages[name](t), file)
		b.open(file, 400, "light")
		var found []string
		b.eval(`(() => {
  document.querySelectorAll('details').forEach(d => d.open = true)
  const faults = new Set(), name = e => e.tagName + '.' + (e.getAttribute('class') || '') + ' ' + e.textContent.trim().slice(0, 30)
  for (const e of document.querySelectorAll('html, body *:not(.scroll, pre)')) {
    if (e.closest('title, desc') || !e.checkVisibility() || e.parentElement?.closest('.scroll, pre')) continue
    if (e.scrollWidth > innerWidth || !(e instanceof SVGElement) && getComputedStyle(e).display != 'inline' && e.scrollWidth > e.clientWidth + 1)
      faults.add('wider than its box: ' + name(e))
    if (e.getBoundingClientRect().right > innerWidth + 0.5) faults.add('beyond the right edge: ' + name(e))
  }
  for (const e of document.querySelectorAll('.scroll, pre')) {
    if (!e.querySelector('table') && e.tagName != 'PRE' && e.scrollWidth > e.clientWidth) faults.add('scrolls: ' + name(e))
    if (e.getBoundingClientRect().right > innerWidth) faults.add('a scrolling region beyond the right edge: ' + name(e))
  }
  // An empty inline block ends at the baseline of the first line.
  const baseline = c => {
    const s = document.createElement('span')
    s.style.display = 'inline-block'
    c.prepend(s)
    const y = s.getBoundingClientRect().bottom
    s.remove()
    return y
  }
  for (const scroll of document.querySelectorAll('.scroll:has(thead)')) {
    scroll.scrollLeft = 1000
    const rows = [...scroll.querySelectorAll('tr')].filter(r => r.checkVisibility())
    for (const row of rows) {
      const first = row.cells[0], next = row.cells[1]
      if (row.parentElement.tagName == 'TBODY' && Math.abs(baseline(first) - baseline(next)) > 0.5)
        faults.add('text of the first column off by ' + (baseline(first) - baseline(next)) + ' px: ' + name(row))
      const style = getComputedStyle(first)
      if (style.position == 'sticky' && style.borderCollapse != 'separate') faults.add('a rule scrolls out from under the first column')
      if (style.borderBottomWidth != '1px') faults.add('no rule below ' + name(first))
    }
    scroll.scrollLeft = 0
  }
  return [...faults].slice(0, 10)
})()`, &found)
		for _, f := range found {
			t.Errorf("%s: %s", name, f)
		}
	}
}

// Charts use the width of the page. The labels of their ticks never overlap, and marks are above their ticks.
func TestBrowserCharts(t *testing.T) {
	b := startBrowser(t)
	for _, test := range []struct {
		name  string
		least map[int]float64 // widths of the screen, and of all charts in a row
	}{
		{"two", map[int]float64{360: 320, 400: 360, 700: 640, 1280: 1000, 1920: 1700}},
		{"one", map[int]float64{400: 360, 1280: 1000, 1920: 1700}},
		{"decode", map[int]float64{400: 360, 700: 640, 1280: 1000, 1920: 1700}},
		{"hundred", map[int]float64{360: 320, 1280: 1000, 1920: 1700}},
	} {
		file := filepath.Join(t.TempDir(), test.name+".html")
		writePage(t, pages[test.name](t), file)
		for width, least := range test.least {
			b.open(file, width, "light")
			var rows []float64
			b.eval(`(() => {
  const rows = {}
  for (const r of [...document.querySelectorAll('svg.chart')].map(c => c.getBoundingClientRect())) rows[r.top + scrollY] = (rows[r.top + scrollY] || 0) + r.width
  return Object.values(rows)
})()`, &rows)
			for _, got := range rows {
				if got < least || got > float64(width) {
					t.Errorf("%s at %d px: charts of %.0f px, want %.0f or more", test.name, width, got, least)
				}
			}
			var found struct {
				Faults []string
				Ticks  [][]string // labels of each chart
			}
			b.eval(`(() => {
  const faults = [], ticks = []
  for (const chart of document.querySelectorAll('svg.chart')) {
    const box = e => e.getBoundingClientRect(), middle = e => (box(e).left + box(e).right) / 2
    const texts = [...chart.querySelectorAll('text.mid:not(.name)')].filter(e => e.checkVisibility())
    texts.forEach((e, i) => { if (i > 0 && box(texts[i - 1]).right + 3 > box(e).left) faults.push(texts[i - 1].textContent + ' touches ' + e.textContent) })
    ticks.push(texts.map(e => e.textContent))
    const at = [...chart.querySelectorAll('.tick')].filter(e => box(e).height > 3).map(middle)
    const marks = [...chart.querySelectorAll('.mark > path[transform]')].map(middle)
    if (at.length > 8 && at.length < 11 && document.title.includes('decode')) for (const m of marks)
      if (!at.some(t => Math.abs(t - m) < 0.6)) faults.push('a mark at ' + m + ' above no tick of ' + at)
    const plot = box(chart.querySelector('.plot'))
    for (const m of marks) if (m < plot.left || m > plot.right) faults.push('a mark outside of its plot')
    for (const e of chart.querySelectorAll('text')) if (e.checkVisibility() && (box(e).left < 0 || box(e).right > innerWidth)) faults.push('outside of the page: ' + e.textContent)
  }
  return {faults, ticks}
})()`, &found)
			for _, f := range found.Faults {
				t.Errorf("%s at %d px: %s", test.name, width, f)
			}
			want := "1 2 4 8 16 32 64 128 256"
			if width > 600 {
				want = "1 2 4 8 16 32 48 64 128 256"
			}
			for _, ticks := range found.Ticks {
				if got := strings.Join(ticks, " "); (test.name == "two" || test.name == "decode") && got != want {
					t.Errorf("%s at %d px: got ticks %s, want %s", test.name, width, got, want)
				}
			}
		}
	}
}

// The pointer on a chart draws a cross there and highlights the marks above and below.
func TestBrowserCross(t *testing.T) {
	b := startBrowser(t)
	file := filepath.Join(t.TempDir(), "decode.html")
	writePage(t, pages["decode"](t), file)
	for _, width := range []int{400, 1280} {
		b.open(file, width, "light")
		var got struct {
			Off    float64  // horizontal distance of the cross from the pointer
			Near   []string // positions of the highlighted marks
			At     string   // position of the mark at the pointer
			Beside string   // the cross for a pointer on the labels
		}
		b.eval(`(() => {
  const chart = document.querySelector('svg.chart'), mark = chart.querySelectorAll('.mark.solution')[4], r = mark.lastElementChild.getBoundingClientRect()
  const move = (x, y) => chart.dispatchEvent(new PointerEvent('pointermove', {clientX: x, clientY: y}))
  const x = (r.left + r.right) / 2, cross = chart.querySelector('.cross')
  move(x, (r.top + r.bottom) / 2)
  const own = +cross.getAttribute('d').match(/M([\d.]+) [\d.]+v/)[1]
  const off = chart.querySelector('.plot').getBoundingClientRect().left + own - x
  const near = [...chart.querySelectorAll('.near')].map(m => m.getAttribute('x'))
  move(chart.getBoundingClientRect().left + 10, (r.top + r.bottom) / 2)
  return {off, near, at: mark.getAttribute('x'), beside: cross.getAttribute('d')}
})()`, &got)
		if math.Abs(got.Off) > 0.6 || !slices.Equal(got.Near, []string{got.At, got.At}) || got.Beside != "" {
			t.Errorf("%d px: got %+v, want a cross and the marks of solution and baseline at the pointer", width, got)
		}
	}
}

// A phone shows the errors of a run on the virtual GPU without scrolling.
func TestBrowserErrors(t *testing.T) {
	b := startBrowser(t)
	file := filepath.Join(t.TempDir(), "emulated.html")
	writePage(t, pages["emulated"](t), file)
	b.open(file, 400, "light")
	var got [][]string // cells of the first rows within the screen
	b.eval(`[...document.querySelectorAll('#r1-workloads tr')].slice(0, 2).map(r => [...r.cells].filter(c => c.getBoundingClientRect().right <= innerWidth).map(c => c.textContent))`,
		&got)
	if want := "[[Workload Verdict Max abs Max rel num_seqs] [00000000 PASSED 1.50e-07 3.00e-04 1]]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	var text string
	b.eval(`document.body.innerText`, &text)
	if strings.Contains(text, "trials") || strings.Contains(text, "µs") {
		t.Errorf("got a page with timings: %s", text)
	}
}

// The edge of a table that scrolls is shaded, not barred, and a table that fits has no shadow.
func TestBrowserShadow(t *testing.T) {
	b := startBrowser(t)
	file := filepath.Join(t.TempDir(), "two.html")
	writePage(t, pages["two"](t), file)
	for _, scheme := range []string{"light", "dark"} {
		// edge returns the lightness, from 0 to 255, of the page and of the darkest column of pixels at the table's edge.
		edge := func(width int) (page, darkest float64) {
			t.Helper()
			b.open(file, width, scheme)
			b.eval(`document.getElementById('r1-workloads').style.visibility = 'hidden'`, nil)
			var box struct{ X, Y, Width, Height float64 }
			b.eval(`(() => { const r = document.getElementById('r1-workloads').parentElement.getBoundingClientRect()
  return {x: r.right + scrollX - 40, y: r.top + scrollY, width: 40, height: r.height} })()`, &box)
			data, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
			if err != nil {
				t.Fatal(err)
			}
			img, err := png.Decode(bytes.NewReader(data))
			if err != nil {
				t.Fatal(err)
			}
			grey := func(x, y int) float64 { return float64(color.GrayModel.Convert(img.At(x, y)).(color.Gray).Y) }
			page, darkest = grey(2, 2), 255
			for x := int(box.X); x < int(box.X+box.Width); x++ {
				for y := int(box.Y); y < int(box.Y+box.Height)+1; y++ {
					darkest = min(darkest, grey(x, y))
				}
			}
			return page, darkest
		}
		if page, darkest := edge(400); darkest >= page || darkest < 0.8*page-10 {
			t.Errorf("%s, 400 px: got %.0f on %.0f, want a soft shadow", scheme, darkest, page)
		}
		if page, darkest := edge(1280); darkest != page {
			t.Errorf("%s, 1280 px: got %.0f on %.0f, want no shadow", scheme, darkest, page)
		}
	}
}

func writePage(t testing.TB, r *Report, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := r.HTML(f); err != nil {
		t.Fatal(err)
	}
}

// The page holds the run's figures to the last digit, and shows them in fisub's usual format.
func TestBrowserFigures(t *testing.T) {
	b := startBrowser(t)
	for _, name := range []string{"decode", "hundred", "places"} {
		r := pages[name](t)
		file := filepath.Join(t.TempDir(), name+".html")
		writePage(t, r, file)
		b.open(file, 1280, "light")
		var head []string
		b.eval(`[...document.querySelectorAll('#r1-workloads thead th')].map(h => h.textContent)`, &head)
		var rows [][][2]string
		b.eval(
			`[...document.querySelectorAll('#r1-workloads tbody tr')].map(r => [...r.cells].map(c => [c.textContent, c.title]))`,
			&rows)
		run := r.Runs[0]
		if len(rows) != len(run.Rows) {
			t.Fatalf("%s: rows: got %d, want %d", name, len(rows), len(run.Rows))
		}
		for i, row := range run.Rows { // the rows of the run folder
			cellOf := func(column string) [2]string {
				at := slices.Index(head, column)
				if at < 0 {
					t.Fatalf("%s: no column %q in %v", name, column, head)
				}
				return rows[i][at]
			}
			figure := func(column, shown string, want float64) {
				t.Helper()
				c := cellOf(column)
				var got float64
				if _, err := fmt.Sscan(strings.TrimRight(strings.Fields(c[1] + " ?")[0], ",;"), &got); err != nil || got != want ||
					math.IsNaN(got) {
					t.Errorf("%s: workload %s: %s: got %q, want %v", name, row.UUID, column, c[1], want)
				}
				if c[0] != shown {
					t.Errorf("%s: workload %s: %s: got %q, want %q", name, row.UUID, column, c[0], shown)
				}
			}
			if c := cellOf("Workload"); c[1] != row.UUID {
				t.Errorf("%s: row %d: got %q, want %q", name, i, c[1], row.UUID)
			}
			if c := cellOf("Verdict"); c[0] != string(row.Evaluated.Status()) {
				t.Errorf("%s: workload %s: got %q, want %q", name, row.UUID, c[0], row.Evaluated.Status())
			}
			s := row.Samples
			if s == nil {
				if c := cellOf("Median"); c[0] != "-" {
					t.Errorf("%s: workload %s was not timed: got %q", name, row.UUID, c[0])
				}
				continue
			}
			figure("Median", ui.Micros(s.MedianNS), s.MedianNS)
			figure("Median", ui.Micros(*row.Evaluated.Latency()*1e6), s.MedianNS)
			figure("Min", ui.Micros(float64(s.MinNS)), float64(s.MinNS))
			figure("Copy", ui.Percent(s.CopyShare), s.CopyShare)
			figure("GB/s", fmt.Sprintf("%.0f", s.Bandwidth), s.Bandwidth)
			if s.PeakShare > 0 {
				figure("Peak", ui.Percent(s.PeakShare), s.PeakShare)
			}
			figure("Warm L2", ui.Micros(s.Warm.MedianNS)+" ± "+ui.Spread(s.Warm.Interval), s.Warm.MedianNS)
			abs, _ := row.Evaluated.Errors()
			figure("Max abs", ui.ErrorText(abs), *abs)
			if x := row.Evaluated.Speedup(); x != nil {
				figure("Speed-up", ui.Times(x), *x)
				figure(run.Run.Run.Baseline.Name, ui.Micros(s.Baseline.MedianNS)+" ± "+ui.Spread(s.Baseline.Interval),
					s.Baseline.MedianNS)
			}
			if c := cellOf("±"); c[0] != ui.Spread(s.Interval) ||
				!strings.Contains(c[1], "from "+ui.ExactNS(s.Interval.LoNS)+" to "+ui.ExactNS(s.Interval.HiNS)) {
				t.Errorf("%s: workload %s: ±: got %q", name, row.UUID, c)
			}
		}
		var key map[string]string
		b.eval(
			`Object.fromEntries([...document.querySelectorAll('.key div')].map(d => [d.querySelector('dt').textContent, d.querySelector('dd').textContent]))`, &key)
		passed, total := run.Passed()
		if got, want := key["passed"], fmt.Sprintf("%d of %d", passed, total); got != want {
			t.Errorf("%s: passed: got %q, want %q", name, got, want)
		}
		if got, ok := key["mean latency, cold L2"]; ok == run.Split() || ok && got != ui.Micros(run.Official()) {
			t.Errorf("%s: mean latency: got %q", name, got)
		}
		if d := run.Done; d.Score != nil {
			if got, want := key["mean speed-up over "+run.Run.Run.Baseline.Name], fmt.Sprintf("%.3f", *d.Score); got != want {
				t.Errorf("%s: score: got %q, want %q", name, got, want)
			}
		}
	}
}

// The audit and the watch over console and network can fail.
func TestBrowserFindsFaults(t *testing.T) {
	b := startBrowser(t)
	file := filepath.Join(t.TempDir(), "decode.html")
	writePage(t, pages["decode"](t), file)
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
	} {
		b.open(file, 360, "light")
		b.eval(test.change+`, 1`, nil)
		var found struct{ Faults []string }
		b.eval(fmt.Sprintf(audit, 360), &found)
		if !slices.ContainsFunc(found.Faults, func(f string) bool { return strings.HasPrefix(f, test.want) }) {
			t.Errorf("%s: got %q, want %q", test.name, found.Faults, test.want)
		}
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, insert := range map[string]string{"a script": `<script>console.log(1)</script>`,
		"a picture": `<img src="http://127.0.0.1:9/x.png">`,
		"a font":    `<style>@import url(http://127.0.0.1:9/x.css)</style>`} {
		changed := filepath.Join(t.TempDir(), "changed.html")
		if err := os.WriteFile(changed, []byte(strings.Replace(string(page), "<main>", insert+"<main>", 1)),
			0o644); err != nil {
			t.Fatal(err)
		}
		if faults := b.open(changed, 360, "light"); len(faults) == 0 {
			t.Errorf("%s: got no fault", name)
		}
	}
}

// The page's script sorts and filters tables, and highlights one workload everywhere.
func TestBrowserScript(t *testing.T) {
	b := startBrowser(t)
	r := pages["hundred"](t)
	file := filepath.Join(t.TempDir(), "hundred.html")
	writePage(t, r, file)
	if faults := b.open(file, 1280, "light"); len(faults) > 0 {
		t.Fatalf("while it opened: %s", strings.Join(faults, "\n"))
	}
	var got struct {
		Least, Greatest, Kept, Marked int
		Status                        string
	}
	b.eval(`(() => {
  const table = document.getElementById('r1-workloads'), head = [...table.tHead.rows[0].cells].find(h => h.textContent == 'Median')
  const at = head.cellIndex, first = () => parseInt(table.tBodies[0].rows[0].cells[at].title)
  head.querySelector('button').click()
  const least = first()
  head.querySelector('button').click()
  const greatest = first(), input = document.querySelector('.filter input')
  input.value = 'incorrect'
  input.dispatchEvent(new Event('input'))
  const kept = [...table.tBodies[0].rows].filter(r => !r.hidden).length
  document.querySelector('svg.chart .mark[data-w]').dispatchEvent(new MouseEvent('click', {bubbles: true}))
  return {least, greatest, kept, marked: table.querySelectorAll('tr.selected').length, status: document.querySelector('.filter [role=status]').textContent}
})()`, &got)
	least, greatest := math.Inf(1), 0.0
	for _, w := range r.Runs[0].Workloads {
		if w.Samples != nil {
			least, greatest = min(least, w.Samples.MedianNS), max(greatest, w.Samples.MedianNS)
		}
	}
	if got.Least != int(least) || got.Greatest != int(greatest) {
		t.Errorf("sorted: got %d and %d first, want %.0f and %.0f", got.Least, got.Greatest, least, greatest)
	}
	if got.Kept != 2 || got.Status != "2 of 100" {
		t.Errorf("filtered: got %d rows, %q, want 2", got.Kept, got.Status)
	}
	if got.Marked != 1 {
		t.Errorf("marked rows: got %d, want 1", got.Marked)
	}
}

// axe-core, which applies the rules of WCAG, finds nothing on a phone and a desktop.
func TestBrowserAxe(t *testing.T) {
	b := startBrowser(t)
	script, err := os.ReadFile(os.Getenv("FISUB_AXE"))
	if err != nil {
		longtest.Missing(t, "axe", "no axe-core in $FISUB_AXE, which scripts/env sets")
	}
	for name, page := range map[string]func(testing.TB) *Report{"decode": pages["decode"], "two": pages["two"],
		"emulated": pages["emulated"], "five": five} {
		file := filepath.Join(t.TempDir(), name+".html")
		writePage(t, page(t), file)
		for width, scheme := range map[int]string{400: "dark", 1280: "light"} {
			if name == "five" && width == 400 {
				continue // it takes a minute and is a larger version of two
			}
			if faults := b.open(file, width, scheme); len(faults) > 0 {
				t.Errorf("%s: while it opened: %s", name, strings.Join(faults, "\n"))
			}
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
				t.Errorf("%s: %d rules had something to look at, want 15 or more", name, found.Passes)
			}
		}
	}
}

// A phone shows the main figures of a table without scrolling, and its verdicts on as many lines as they need.
func TestBrowserFirstColumns(t *testing.T) {
	b := startBrowser(t)
	for _, test := range []struct {
		page, table string
		want        string // headings of the columns within the screen
	}{
		{"decode", "r1-workloads", "[Workload Verdict Median ± batch_size]"},
		{"hundred", "r1-workloads", "[Workload Verdict Median ±]"},
		{"two", "d1-workloads", "[Workload Verdict on B B/A batch_size]"},
		{"two", "overview", "[Run Solution Passed Mean latency]"},
		{"two", "configurations", "[Fact 20261121-113455-189e32 20261121-113501-145b98]"},
	} {
		file := filepath.Join(t.TempDir(), test.page+".html")
		writePage(t, pages[test.page](t), file)
		b.open(file, 400, "light")
		var got []string
		b.eval(fmt.Sprintf(`(() => { const table = document.getElementById('%s'), right = table.parentElement.getBoundingClientRect().right
  return [...table.tHead.rows[0].cells].filter(c => c.getBoundingClientRect().right <= right + 0.5).map(c => c.textContent) })()`,
			test.table), &got)
		if fmt.Sprint(got) != test.want {
			t.Errorf("%s of %s: got %v, want %s", test.table, test.page, got, test.want)
		}
	}
}

// The key figures of a run are in columns on a phone.
func TestBrowserKey(t *testing.T) {
	b := startBrowser(t)
	for _, name := range []string{"decode", "emulated", "hundred", "two"} {
		file := filepath.Join(t.TempDir(), name+".html")
		writePage(t, pages[name](t), file)
		b.open(file, 400, "light")
		var lefts []float64
		b.eval(`[...new Set([...document.querySelectorAll('.key dd')].map(d => d.getBoundingClientRect().left))]`, &lefts)
		if len(lefts) != 2 {
			t.Errorf("%s: got key figures from %v px, want two columns", name, lefts)
		}
	}
}

// The lines below a heading break between facts. The device and the time of a run stay in one piece.
func TestBrowserLines(t *testing.T) {
	b := startBrowser(t)
	for _, name := range []string{"emulated", "decode"} {
		file := filepath.Join(t.TempDir(), name+".html")
		writePage(t, pages[name](t), file)
		b.open(file, 400, "light")
		var broken []string
		b.eval(`[...document.querySelectorAll('.lines > span:not(.dot)')].filter(s => {
  const r = document.createRange()
  r.selectNodeContents(s)
  return new Set([...r.getClientRects()].map(r => r.top)).size > 1
}).map(s => s.textContent)`, &broken)
		if len(broken) > 0 {
			t.Errorf("%s: got %q on several lines", name, broken)
		}
	}
}

// The headings of a long table stay in view.
func TestBrowserTall(t *testing.T) {
	b := startBrowser(t)
	file := filepath.Join(t.TempDir(), "hundred.html")
	writePage(t, pages["hundred"](t), file)
	for _, width := range []int{400, 1280} {
		b.open(file, width, "light")
		var got struct {
			Head, Row string // what is at the top left of the table, and in its middle
			Height    float64
		}
		b.eval(`(() => {
  const table = document.getElementById('r1-workloads'), scroll = table.parentElement
  document.documentElement.style.scrollBehavior = 'auto'
  scroll.scrollIntoView()
  scroll.scrollTop = 1000
  scroll.scrollLeft = 200
  const box = scroll.getBoundingClientRect(), at = (x, y) => document.elementFromPoint(box.left + x, box.top + y).closest('th, td').textContent
  return {head: at(5, 15), row: at(5, 300), height: box.height}
})()`, &got)
		if got.Head != "Workload" || !strings.HasPrefix(got.Row, "000000") || got.Height > 800 {
			t.Errorf("%d px: got %+v, want a heading above workloads", width, got)
		}
	}
	file = filepath.Join(t.TempDir(), "decode.html")
	writePage(t, pages["decode"](t), file)
	b.open(file, 1280, "light")
	var hidden int
	b.eval(`[...document.querySelectorAll('.scroll')].filter(s => s.scrollHeight > s.clientHeight + 1).length`, &hidden)
	if hidden > 0 {
		t.Errorf("got %d short tables that scroll vertically", hidden)
	}
}

// The first column of the kernels is as wide as the names, and covers no other column.
func TestBrowserKernels(t *testing.T) {
	b := startBrowser(t)
	for name, most := range map[string]float64{"two": 160, "decode": 240, "hundred": 240} {
		file := filepath.Join(t.TempDir(), name+".html")
		writePage(t, pages[name](t), file)
		b.open(file, 400, "light")
		var got struct {
			Width  float64
			Mixed  bool // some cells of the first column stay when the table is scrolled
			Sticky int
		}
		b.eval(`(() => {
  const first = [...document.querySelectorAll('#r1-kernels tr')].map(r => r.cells[0]), sticky = first.filter(c => getComputedStyle(c).position == 'sticky').length
  return {width: first[0].getBoundingClientRect().width, mixed: sticky > 0 && sticky < first.length, sticky}
})()`, &got)
		if got.Width > most || got.Mixed {
			t.Errorf("%s: got %+v, want at most %.0f px and one kind of cells", name, got, most)
		}
		wide := 1280
		if name == "hundred" {
			wide = 1920 // its kernels have workloads of several axes
		}
		b.open(file, wide, "light")
		var beyond int
		b.eval(`(() => { const s = document.getElementById('r1-kernels').parentElement; return s.scrollWidth - s.clientWidth })()`,
			&beyond)
		var insets []string // the left padding of the cells of the last column
		b.eval(`[...new Set([...document.querySelectorAll('#r1-kernels tr > :last-child')].map(c => getComputedStyle(c).paddingLeft))]`,
			&insets)
		if len(insets) != 1 {
			t.Errorf("%s: got a last column that starts at %v, want one edge", name, insets)
		}
		if beyond > 0 {
			t.Errorf("%s: got a table of kernels %d px wider than a screen of %d px", name, beyond, wide)
		}
	}
}

// Marks of workloads with the same value of the axis overlap by less than half.
func TestBrowserCrowd(t *testing.T) {
	b := startBrowser(t)
	file := filepath.Join(t.TempDir(), "hundred.html")
	writePage(t, pages["hundred"](t), file)
	b.open(file, 1280, "light")
	var got []float64 // share of the marks' width between neighbours of one group, in each chart
	b.eval(`[...document.querySelectorAll('svg.chart')].map(chart => {
  const box = m => m.lastElementChild.getBoundingClientRect(), marks = [...chart.querySelectorAll('.mark.solution')].map(box).sort((a, b) => a.left - b.left)
  const steps = marks.slice(1).map((m, i) => m.left - marks[i].left).sort((a, b) => a - b)
  return steps[Math.floor(steps.length / 2)] / marks[0].width
})`, &got)
	for _, share := range got {
		if share < 0.7 {
			t.Errorf("got a step of %.2f marks, want 0.7 or more", share)
		}
	}
	if len(got) != 2 {
		t.Errorf("got %d charts, want 2", len(got))
	}
}

// The name of a chart's vertical axis starts below the title.
func TestBrowserAxisName(t *testing.T) {
	b := startBrowser(t)
	file := filepath.Join(t.TempDir(), "decode.html")
	writePage(t, pages["decode"](t), file)
	b.open(file, 1280, "light")
	var off []float64
	b.eval(`[...document.querySelectorAll('svg.chart')].map(c => c.querySelector('text.name:not(.mid)').getBoundingClientRect().left - c.parentElement.querySelector('figcaption').getBoundingClientRect().left)`, &off)
	for _, x := range off {
		if math.Abs(x) > 1 {
			t.Errorf("got the name of an axis %.1f px beside the title", x)
		}
	}
}

// Histograms use the width of the page, and their text has about the size of other notes.
func TestBrowserHistograms(t *testing.T) {
	b := startBrowser(t)
	file := filepath.Join(t.TempDir(), "decode.html")
	writePage(t, pages["decode"](t), file)
	for width, most := range map[int]float64{1280: 13, 1920: 13} {
		b.open(file, width, "light")
		var got struct {
			Size   float64
			Labels []string
			Tops   int // distinct positions of the plots, which are in rows
			Rows   int
		}
		b.eval(`(() => {
  document.querySelectorAll('details').forEach(d => d.open = true)
  const texts = [...document.querySelectorAll('.hist text.mid')]
  const tops = new Set([...document.querySelectorAll('.hist svg')].map(s => Math.round(s.getBoundingClientRect().top)))
  const columns = getComputedStyle(document.querySelector('.grid')).gridTemplateColumns.split(' ').length
  return {size: 12 * texts[0].getScreenCTM().a, labels: [...new Set(texts.map(t => t.textContent))], tops: tops.size, rows: Math.ceil(10 / columns)}
})()`, &got)
		if got.Tops != got.Rows {
			t.Errorf("%d px: got plots at %d heights, want %d rows", width, got.Tops, got.Rows)
		}
		if got.Size > most || !slices.Contains(got.Labels, "0 %") {
			t.Errorf("%d px: got %+v, want text of at most %.0f px, and 0 %%", width, got, most)
		}
	}
}

// The footer defines the columns of the page's tables, each once, on evenly spaced lines.
func TestBrowserDefinitions(t *testing.T) {
	b := startBrowser(t)
	for name, want := range map[string]string{
		"two":      "[Verdict Max abs, max rel Median, latency ± Copy GB/s Warm L2 Faster, slower Same, unclear]",
		"emulated": "[Verdict Max abs, max rel Matched]",
		"decode":   "[Verdict Max abs, max rel Median, latency ± Copy GB/s Warm L2 Speed-up, contest score]",
		"hundred":  "[Verdict Max abs, max rel Median, latency ± Copy GB/s Peak Warm L2 Speed-up, contest score]",
	} {
		file := filepath.Join(t.TempDir(), name+".html")
		writePage(t, pages[name](t), file)
		b.open(file, 1280, "light")
		var got struct {
			Terms []string
			Lower []string // definitions that start with a lower-case letter
			Off   float64  // largest distance of a definition's first line from its term's
		}
		b.eval(`(() => {
  const dts = [...document.querySelectorAll('.defs dt')], top = e => { const r = document.createRange(); r.selectNodeContents(e); return r.getClientRects()[0].top }
  return {terms: dts.map(d => d.textContent), lower: dts.map(d => d.nextElementSibling.textContent).filter(d => /^[a-z]/.test(d)),
    off: Math.max(...dts.map(d => Math.abs(top(d) - top(d.nextElementSibling))))}
})()`, &got)
		if fmt.Sprint(got.Terms) != want {
			t.Errorf("%s: got %v, want %s", name, got.Terms, want)
		}
		if len(got.Lower) > 0 || got.Off > 1 {
			t.Errorf("%s: got %q in lower case, and terms %.1f px off", name, got.Lower, got.Off)
		}
	}
}

// BenchmarkFirstPaint opens a page of five runs with 100 workloads each.
func BenchmarkFirstPaint(b *testing.B) {
	page := startBrowser(b)
	file := filepath.Join(b.TempDir(), "five.html")
	writePage(b, five(b), file)
	sum := 0.0
	for b.Loop() {
		page.open(file, 1280, "light")
		var ms float64
		page.eval(`performance.getEntriesByName('first-contentful-paint')[0].startTime`, &ms)
		sum += ms
	}
	b.ReportMetric(sum/float64(b.N), "ms-to-first-paint")
}
