package app

import (
	"strings"
	"testing"

	"fisub/internal/trace"
)

func TestSourcesOfTwoDefinitions(t *testing.T) {
	of := func(arg, def string) *source {
		return &source{arg: arg, submission: &submission{def: &trace.Definition{Name: def}}}
	}
	_, err := (&app{}).runTogether(nil, []*source{of("HEAD", "d1"), of("x.json", "d2")})
	if err == nil || !strings.Contains(err.Error(), "HEAD is of definition d1, x.json of d2") {
		t.Errorf("got %v, want an error that names both", err)
	}
}
