package report

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/runs"
)

// wrongMap returns a map with all classes of wrong elements.
func wrongMap(output string, rows, columns int) event.Map {
	m := event.Map{Output: output, Text: "9 elements wrong: only with head index 1 or more", Elements: 4 * rows * columns,
		Down: event.MapAxis{Name: "head", Size: rows}, Across: event.MapAxis{Name: "dim (axis 2)", Size: columns}}
	const letters = ".aAbBcCnNuU"
	for y := range m.Down.Cells() {
		row := ""
		for x := range m.Across.Cells() {
			at := (3*y + x/2) % 17
			if at >= len(letters) {
				at = 0
			}
			row += letters[at : at+1]
			if at > 0 {
				m.Counts[(at-1)/2]++
			}
		}
		m.Cells = append(m.Cells, row)
	}
	return m
}

// failed returns a run on the virtual GPU with wrong outputs, faults and a race.
func failed(t testing.TB) *runs.Run {
	run := gpuRun("20260102-failed", 6)
	run.Device, run.Baseline, run.Floors = event.Device{Kind: "emu", Name: "CPU", Emulated: true, Toolchain: "g++ 12"},
		nil, false
	run.Folder, run.Sources = "solution/cuda", []string{"kernel.cu"}
	var list []event.Event
	add := func(i int, v eventtest.Verdict, change func(e *event.Evaluated)) {
		v.UUID, v.Axes = run.Workloads[i].UUID, run.Workloads[i].Axes
		e := v.Evaluated()
		change(e)
		list = append(list, event.Event{Type: event.TypeEvaluated, Workload: v.UUID, Evaluated: e})
	}
	source := []event.Excerpt{{File: "kernel.cu", Line: 12, Column: 3, First: 9, Lines: []string{"{", "\tif (a) {", "\t}",
		"\ts = x[2 * col - 1234567890];", "", "  t = s;", "}"}}, {File: "kernel.cu", Line: 14, Column: 3, First: 11, Lines: []string{"\t}",
		"\ts = x[2 * col - 1234567890];", "", "  t = s;", "}", ""}}}
	wrong := eventtest.Verdict{Status: "INCORRECT_NUMERICAL", MaxAbs: 1, MaxRel: 2, Detail: "y[0 1] is 2, expected 1; 9 of 64 elements are wrong",
		Log: "printed\ny: 9 elements wrong: only with head index 1 or more\ny[0 1] is 2, expected 1; 9 of 64 elements are wrong"}
	add(0, wrong, func(e *event.Evaluated) {
		row := event.Map{Output: "z", Text: "64 elements never written: all elements", Elements: 64, Counts: [5]int{4: 64},
			Down: event.MapAxis{Size: 1}, Across: event.MapAxis{Name: "k", Size: 64}, Cells: []string{strings.Repeat("U", 64)}}
		e.Maps = []event.Map{wrongMap("y", 8, 128), wrongMap("state", 4000, 100000), wrongMap("narrow", 60, 3), row}
	})
	fault := eventtest.Verdict{Status: "RUNTIME_ERROR", Detail: "DeviceFault: kernel.cu:12:3: invalid read", Log: "kernel.cu:12:3: invalid read\n" +
		"DeviceFault: kernel.cu:12:3: invalid read"}
	for _, i := range []int{1, 2} {
		add(i, fault, func(e *event.Evaluated) { e.Source = source[:1] })
	}
	for i := 3; i < 6; i++ {
		list = append(list, passed(run.Workloads[i], nil)...)
		list = append(list, event.Event{Type: event.TypeWarning, Workload: run.Workloads[i].UUID, Finding: &event.Finding{Check: "race",
			Place: "kernel.cu:12:3", Text: "kernel.cu:12:3: a race with kernel.cu:14:3", Source: source}})
	}
	return folder(t, run, append(list, event.Event{Type: event.TypeDone, Done: &event.Done{Seconds: 1}})...)
}

var (
	cells  = regexp.MustCompile(`M(\d+) ([\d.]+)h(\d+)v([\d.]+)h-\d+z`)
	stroke = regexp.MustCompile(`M([\d.]+) ([\d.]+)l`)
)

// A picture has each cell of its map once, in the colour of its class, at its height, and patterns in the cells that
// are not finite or unwritten.
func TestPicturesShowTheirMaps(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		m := event.Map{Output: "y", Text: "wrong", Elements: 1 << 30,
			Down:   event.MapAxis{Name: "head", Size: 1 + r.IntN(200)},
			Across: event.MapAxis{Name: "dim", Size: 1 + r.IntN(200)}}
		share := r.Float64()
		for range m.Down.Cells() {
			row := ""
			for range m.Across.Cells() {
				if r.Float64() > share {
					row += "."
				} else {
					at := r.IntN(10)
					row += "abcnuABCNU"[at : at+1]
				}
			}
			m.Cells = append(m.Cells, row)
		}
		p := pictureOf(&m, "id")
		drawn := make([][]byte, p.Rows)
		patterns := map[[2]int]int{}
		for y := range drawn {
			drawn[y] = []byte(strings.Repeat(".", p.Columns))
		}
		number := func(s string) float64 { v, _ := strconv.ParseFloat(s, 64); return v }
		for _, layer := range p.Layers {
			kind, class, _ := strings.Cut(layer.Class, " ")
			if kind == "pattern" {
				for _, s := range stroke.FindAllStringSubmatch(layer.Path, -1) {
					patterns[[2]int{int(number(s[1])), int(number(s[2]) - 0.1)}]++
				}
				continue
			}
			for _, s := range cells.FindAllStringSubmatch(layer.Path, -1) {
				letter := class
				if number(s[4]) > 0.5 {
					letter = strings.ToUpper(class)
				}
				for x := range int(number(s[3])) {
					at := &drawn[int(number(s[2]))][int(number(s[1]))+x]
					if *at != '.' {
						t.Fatalf("a cell is drawn twice in %s", layer.Path)
					}
					*at = letter[0]
				}
			}
		}
		for y, row := range m.Cells {
			if string(drawn[y]) != row {
				t.Fatalf("row %d: got %s, want %s", y, drawn[y], row)
			}
			for x, letter := range row {
				if patterned := strings.ContainsRune("nuNU", letter); patterned != (patterns[[2]int{x, y}] == 1) {
					t.Fatalf("cell %c at %d, %d: got %d patterns", letter, x, y, patterns[[2]int{x, y}])
				}
			}
		}
	}
}

// The labels and the text of a picture name axes, indices, counts and the size of a cell.
func TestPictureText(t *testing.T) {
	m := wrongMap("y", 8, 128)
	p := pictureOf(&m, "id")
	if want := "y: 9 elements wrong: only with head index 1 or more"; p.Title != want {
		t.Errorf("title: got %q, want %q", p.Title, want)
	}
	if want := "4096 elements. Down: head, index 0 to 7. Across: dim (axis 2), index 0 to 127, 2 in a cell. A cell shows the " +
		"worst of its 8 elements. Blank: none is wrong. Half height: at most half are wrong."; p.Note != want {
		t.Errorf("note: got %q, want %q", p.Note, want)
	}
	var legend []string
	for i, s := range p.Legend {
		legend = append(legend, s.Text)
		if len(s.Layers) != []int{1, 1, 1, 2, 2}[i] {
			t.Errorf("%s: got %d layers in its symbol", s.Text, len(s.Layers))
		}
	}
	want := fmt.Sprintf("[up to 10× the tolerance: %d up to 100× the tolerance: %d over 100× the tolerance: %d NaN or infinity: %d "+
		"never written: %d]", m.Counts[0], m.Counts[1], m.Counts[2], m.Counts[3], m.Counts[4])
	if fmt.Sprint(legend) != want {
		t.Errorf("legend: got %v, want %s", legend, want)
	}
	if want := "[{0.5 0 } {8.5 16 } {16.5 32 } {24.5 48 } {32.5 64 } {40.5 80 } {48.5 96 } {56.5 112 }]"; fmt.Sprint(p.Across) != want {
		t.Errorf("labels: got %v, want %s", p.Across, want)
	}

	m = event.Map{Output: "z", Text: "all", Elements: 3, Counts: [5]int{2: 3}, Down: event.MapAxis{Size: 1},
		Across: event.MapAxis{Name: "k", Size: 3}, Cells: []string{"CCC"}}
	p = pictureOf(&m, "id")
	if want := "3 elements. Across: k, index 0 to 2. A cell shows the worst of its 1 element. Blank: none is wrong."; p.Note != want ||
		p.DownName != "" || len(p.Down) != 0 || len(p.Legend) != 1 {
		t.Errorf("one axis: got %q, %q, %v and %v", p.Note, p.DownName, p.Down, p.Legend)
	}
}

// Each sentence about a failure is on the page once, and its source lines are marked.
func TestFailureOnce(t *testing.T) {
	page := rendered(t, pages["failed"](t).HTML)
	for text, want := range map[string]int{
		"y[0 1] is 2, expected 1; 9 of 64 elements are wrong":             1,
		"<figcaption>y: 9 elements wrong: only with head index 1 or more": 1,
		"y: 9 elements wrong: only with head index 1 or more":             2, // and as the title of the picture
		"solution/cuda/kernel.cu:12:3: invalid read":                      1,
		"as on 00000001":                         1,
		"solution/cuda/kernel.cu, lines 9 to 15": 2, // of the fault and of the race
		"<strong>12 |     s = x[2 * col - 1234567890];\n          ^</strong>\n": 2,
		"13 | \n<strong>14 |   t = s;\n       ^</strong>\n15 | }\n":             1,
		"13 | \n14 |   t = s;\n15 | }\n":                                        1,
		"<pre tabindex=\"0\">printed</pre>":                                     1,
		"left no log":                                                           0,
		`<svg class="map"`:                                                      4,
		"<li><strong class=\"doubt\">race</strong> on workload <code>00000004-aaaa-bbbb-cccc-dddddddddddd</code>: solution": 1,
	} {
		if got := strings.Count(page, text); got != want {
			t.Errorf("%s: got it %d times, want %d", text, got, want)
		}
	}
}

// A page has a limited number of pictures, and says so.
func TestMostPictures(t *testing.T) {
	r := failed(t)
	for i := range r.Rows {
		if e := r.Rows[i].Evaluated; len(e.Maps) > 0 {
			for range 3 {
				e.Maps = append(e.Maps, e.Maps...)
			}
		}
	}
	page := rendered(t, newReport(t, r).HTML)
	if got := strings.Count(page, `<svg class="map"`); got != mostPictures || !strings.Contains(page, "are not drawn") {
		t.Errorf("got %d pictures, want %d and a note", got, mostPictures)
	}
}
