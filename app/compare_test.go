package app

import (
	"strings"
	"testing"

	"fisub/internal/trace"
	"fisub/project"
)

func TestSourcesOfTwoDefinitions(t *testing.T) {
	of := func(arg, def string) *project.Source {
		return &project.Source{Arg: arg, Submission: &project.Submission{Definition: &trace.Definition{Name: def}}}
	}
	if err := sameDefinition([]*project.Source{of("a", "d1"), of("b", "d1")}); err != nil {
		t.Errorf("one definition: got %v", err)
	}
	err := sameDefinition([]*project.Source{of("HEAD", "d1"), of("x.json", "d2")})
	if err == nil || !strings.Contains(err.Error(), "HEAD has d1, x.json has d2") {
		t.Errorf("got %v, want an error that names both", err)
	}
}
