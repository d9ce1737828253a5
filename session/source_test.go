package session

import (
	"strings"
	"testing"

	"fisub/internal/trace"
)

func TestSourcesOfTwoDefinitions(t *testing.T) {
	of := func(arg, def string) *Source {
		return &Source{Arg: arg, Submission: &Submission{Definition: &trace.Definition{Name: def}}}
	}
	if err := sameDefinition([]*Source{of("a", "d1"), of("b", "d1")}); err != nil {
		t.Errorf("one definition: got %v", err)
	}
	err := sameDefinition([]*Source{of("HEAD", "d1"), of("x.json", "d2")})
	if err == nil || !strings.Contains(err.Error(), "HEAD is of definition d1, x.json of d2") {
		t.Errorf("got %v, want an error that names both", err)
	}
}
