package project

import (
	"slices"
	"strings"
	"testing"

	"fisub/internal/trace"
)

func source(file, text string) *Source {
	return &Source{Submission: &Submission{Solution: &trace.Solution{Name: "s",
		Sources: []trace.SourceFile{{Path: "other.cuh", Content: "int x;\n"}, {Path: file, Content: text}}}}}
}

func TestVariants(t *testing.T) {
	for _, tc := range []struct{ file, text, want string }{
		{"k.cu", "#define TILE 32\nint a;\n", "#define TILE 8\nint a;\n"},
		{"k.cu", "  #  define TILE  (4 * 8)  // rows\r\nint a;", "  #  define TILE  8  // rows\r\nint a;"},
		{"k.cuh", "int b;\n#ifndef TILE\n#define TILE 32 /* x */\n#endif", "int b;\n#ifndef TILE\n#define TILE 8 /* x */\n#endif"},
		{"k.cu", "static constexpr int TILE = 4 + 4; // TILE", "static constexpr int TILE = 8; // TILE"},
		{"k.cu", "constexpr int A = 1, TILE = 2, B = 3;", "constexpr int A = 1, TILE = 8, B = 3;"},
		{"k.cpp", "const unsigned TILE=16;", "const unsigned TILE=8;"},
		{"k.py", "X = 1\nTILE = 32  # rows\n", "X = 1\nTILE = 8  # rows\n"},
		{"k.py", "TILE: tl.constexpr = tl.constexpr(32)", "TILE: tl.constexpr = 8"},
	} {
		s := source(tc.file, tc.text)
		got, err := s.Variants([]Constant{{"TILE", []string{"8", "16"}}}, 2)
		if err != nil {
			t.Errorf("%s: %v", tc.text, err)
			continue
		}
		if text := got[0].Solution.Sources[1].Content; text != tc.want {
			t.Errorf("%q: got %q, want %q", tc.text, text, tc.want)
		}
		if s.Solution.Sources[1].Content != tc.text || got[1].Variant != "TILE=16" || len(got) != 2 {
			t.Errorf("%q: got %+v", tc.text, got)
		}
	}
}

func TestVariantsCombined(t *testing.T) {
	s := source("k.cu", "#define A 1\n#define B 2\n")
	got, err := s.Variants([]Constant{{"B", []string{"3", "4"}}, {"A", []string{"5", "6"}}}, 4)
	if err != nil {
		t.Fatal(err)
	}
	var names, texts []string
	for _, v := range got {
		names, texts = append(names, v.Variant), append(texts, v.Solution.Sources[1].Content)
	}
	if want := []string{"B=3 A=5", "B=3 A=6", "B=4 A=5", "B=4 A=6"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
	if want := "#define A 6\n#define B 3\n"; texts[1] != want {
		t.Errorf("got %q, want %q", texts[1], want)
	}
}

func TestVariantsErrors(t *testing.T) {
	for _, tc := range []struct{ file, text, want string }{
		{"k.cu", "int TILE = 3;", "no source of s defines it"},
		{"k.cu", "constexpr bool x = TILE == 3;", "no source of s defines it"},
		{"k.cu", "#define TILE(x) x", "no source of s defines it"},
		{"k.cu", "#define TILE 3 \\\n + 4", "no source of s defines it"},
		{"k.py", "if TILE == 3:\n  TILE = 4", "no source of s defines it"},
		{"k.cu", "#if X\n#define TILE 1\n#else\n#define TILE 2\n#endif", "more than one definition: k.cu:2, k.cu:4"},
	} {
		_, err := source(tc.file, tc.text).Variants([]Constant{{"TILE", []string{"8", "16"}}}, 2)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: got %v, want %q", tc.text, err, tc.want)
		}
	}
}

func TestParseConstants(t *testing.T) {
	got, err := ParseConstants([]string{"A=1", "2", "B=x=y", "z"})
	if err != nil || len(got) != 2 || !slices.Equal(got[0].Values, []string{"1", "2"}) ||
		!slices.Equal(got[1].Values, []string{"x=y", "z"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "A", "=1", "A=", "A=1,", "A=1,1", "A=1,A=2", "1=2", "A=1\n2"} {
		if got, err := ParseConstants([]string{bad}); err == nil {
			t.Errorf("%q: got %v", bad, got)
		}
	}
}
