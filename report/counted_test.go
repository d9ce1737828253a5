package report

import (
	"fmt"
	"strings"
	"testing"

	"fisub/device/counters"
)

// counted returns a page of two kernels. The first one has a hot line, a line beyond its file, a file without source, a
// difference of the machine code and a hostile name and source; the second one has no line information.
func counted(testing.TB) *Counted {
	source := strings.Split("// A transpose.\n<script>document.title = 'owned'</script>\n"+strings.Repeat("\tint i = 0;\r\n", 40), "\n")
	row := func(file string, line int, op string, c counters.Counts) counters.Row {
		return counters.Row{File: file, Line: line, Op: op, Counts: c}
	}
	hostile := counters.Launch{Kernel: "transpose<img src=x onerror=alert(1)>", Launches: 2, Grid: [3]int{64, 1, 1},
		Block: [3]int{256, 1, 1}, Cluster: [3]int{1, 1, 1}, Blocks: 128, Registers: 24, StaticShared: 4096, Cold: 8192,
		Proved: true, Differences: []counters.Difference{{File: "t.cu", Line: 30, Text: "ptxas merged 4 loads into 1"}},
		Rows: []counters.Row{
			row("t.cu", 2, "mov.u32", counters.Counts{Warps: 40, Threads: 1280, Active: 1280}),
			row("t.cu", 2, "bra", counters.Counts{Warps: 40, Threads: 1280, Active: 1280, Divergent: 40}),
			row("t.cu", 20, "ld.shared.b32", counters.Counts{Warps: 2048, Threads: 65536, Active: 65536, Shared: 2048,
				Waves: 65536, Ideal: 2048, Conflicts: 63488, SharedStride: 128}),
			row("t.cu", 20, "st.global.b32", counters.Counts{Warps: 2048, Threads: 65536, Active: 65536, Requests: 2048,
				Sectors: 8192, Least: 8192, Bytes: 262144}),
			row("t.cu", 30, "ld.global.b32", counters.Counts{Warps: 2048, Threads: 65536, Active: 65536, Requests: 2048,
				Sectors: 8192, Least: 8192, Bytes: 262144}),
			row("t.cu", 99, "mov.u32", counters.Counts{Warps: 40, Threads: 1280, Active: 1280}),
			row("\"><b>cuda_fp16.hpp", 1234, "cvt.f32.f16", counters.Counts{Warps: 80, Threads: 2560, Active: 2560}),
		}}
	plain := counters.Launch{Kernel: "norm", Launches: 1, Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1},
		Cluster: [3]int{1, 1, 1}, Blocks: 1, Rows: []counters.Row{row("", 0, "add.f32", counters.Counts{Warps: 1})}}
	return &Counted{Version: "0", Title: "transpose 0123abcd", Lines: []string{"definition", "workload 96825aea"},
		GPU: &counters.GPUs[0], Launches: []counters.Launch{hostile, plain}, Source: func(file string) []string {
			if file == "t.cu" {
				return source
			}
			return nil
		}}
}

// The page has the facts, the advice and the counts of each line, and foreign text is only text.
func TestCounted(t *testing.T) {
	page := rendered(t, counted(t).HTML)
	cells := func(class string, texts ...string) string {
		all := ""
		for _, text := range texts {
			if text == "-" {
				all += `<td class="note r">-</td>`
			} else {
				all += fmt.Sprintf(`<td class="%s r">%s</td>`, class, text)
				class = ""
			}
		}
		return all
	}
	check(t, "counted", page, []string{
		"<title>transpose 0123abcd: fisub report</title>",
		"transpose&lt;img src=x onerror=alert(1)&gt;, 64 blocks of 256 threads, 2 launches",
		"<td>24 registers and 0 bytes of local memory per thread, ",
		`<a href="#k1-f1-20"><code>t.cu:20</code></a>, 94 % of the cost: ld.shared.b32: 32.0 wavefronts per request, 1.0 would do`,
		`<a href="#k1-f1-30"><code>t.cu:30</code></a>, 6 % of the cost: not exact: ptxas merged 4 loads into 1</li>`,
		`<th scope="row" id="k1-f1-20">20</th>` + cells("hot", "94 %", "4096", "2048", "8192", "8192", "65536", "63488") +
			`<td class="source">    int i = 0;</td></tr>`,
		`<th scope="row" id="k1-f1-2">2</th>` + cells("", "0 %", "80", "-", "-", "-", "-", "-") +
			`<td class="source">&lt;script&gt;document.title = &#39;owned&#39;&lt;/script&gt;</td></tr>`,
		`<th scope="row" id="k1-f1-17">17</th>`, `<th scope="row" id="k1-f1-99">99</th>`,
		`<th scope="row" class="code">memory_l1_wavefronts_shared</th><td class=" r">65536</td><td>PTX</td>`,
		"No line information.", "&#34;&gt;&lt;b&gt;cuda_fp16.hpp",
	}, []string{"<script>document", "<img", "<b>", "the lanes part in", `id="k1-f1-16"`, `id="k1-f1-98"`, "\r"})
}
