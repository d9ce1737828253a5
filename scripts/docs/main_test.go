package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"fisub/internal/config"
	"fisub/remote/providers"
)

// The generated pages are up to date.
func TestFresh(t *testing.T) {
	root := filepath.Join("..", "..")
	files, err := pages(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run go generate ./docs", name)
		}
	}
}

// Each key of a provider has a help text and a default.
func TestRemoteKeys(t *testing.T) {
	for kind, keys := range providers.Keys() {
		config.NewTable("remote."+kind, nil).Decode(keys) // panics if a default does not have its key's type
		for _, k := range keys {
			if k.Help == "" || k.Missing() == "" || k.Required && k.Example == "" {
				t.Errorf("%s.%s: got help %q, missing %q, example %q", kind, k.Name, k.Help, k.Missing(), k.Example)
			}
		}
	}
}
