package agent_test

import (
	"strings"
	"testing"

	"fisub/remote"
	"fisub/remote/agent"
)

// Any exit.json gives a known End and texts of one line.
func FuzzExit(f *testing.F) {
	f.Add([]byte(`{"end":"done","status":0,"text":"x","hint":"y\nz"}`))
	f.Add([]byte(`{"end":"lost"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		exit := agent.ParseExit(text, remote.Seal{})
		if !exit.End.Known() || strings.ContainsAny(exit.Text+exit.Hint, "\n\x1b") || len(exit.Text) > 1000 {
			t.Errorf("got %+v", exit)
		}
	})
}
