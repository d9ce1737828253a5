package tools

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// The pages are ncu's for decode_kernel at batch size 64 on an H100, with fewer columns and instructions.
func TestStalls(t *testing.T) {
	raw, err := os.ReadFile("testdata/raw.csv")
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := Figures(raw)
	if err != nil || len(kernels) != 1 {
		t.Fatalf("got %+v, %v, want one kernel", kernels, err)
	}
	page, err := os.ReadFile("testdata/source.csv")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := SourceLines(page, "/tmp/x/src")
	if err != nil {
		t.Fatal(err)
	}
	AddLines(kernels, lines)
	var out bytes.Buffer
	Table(&out, kernels, false)
	t.Log(out.String())
	for _, want := range []string{"  duration                 19.90 us\n", "  bandwidth                2258 GB/s, 67 % of",
		"limited by registers\n", "  stalls                   ", " long scoreboard\n", "decode.cuh:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %q", &out, want)
		}
	}
	AddLines(kernels, nil)
	two := append(lines, LineSamples{Kernel: "another", All: 1})
	other, _ := Figures(raw)
	if AddLines(other, two); other[0].Stalls[0].Lines != nil {
		t.Errorf("got %+v, want no lines of another kernel", other[0].Stalls[0])
	}
	for _, bad := range []string{"", "\"Line No\"", "\"File Path\",\"x\"\n\"1\",\"y\"", "\"a"} {
		if got, err := SourceLines([]byte(bad), "/x"); len(got) > 0 {
			t.Errorf("%q: got %+v, %v", bad, got, err)
		}
	}

	layout, rows := CompareTable(&Profiled{Kernels: kernels}, &Profiled{Kernels: append(kernels, kernels...)})
	text := ""
	for _, row := range rows {
		if len(row) != len(layout) {
			t.Errorf("got %q, want %d cells", row, len(layout))
		}
		text += strings.Join(row, "|") + "\n"
	}
	for _, want := range []string{"  duration|19.90 us|19.90 us|1.00\n", "  duration|-|19.90 us|-\n", "  stall: long scoreboard|"} {
		if !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant %q", text, want)
		}
	}
}
