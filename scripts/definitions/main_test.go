package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The generated definitions are up to date, and no others are in their folder.
func TestFresh(t *testing.T) {
	root := filepath.Join("..", "..", "definitions")
	files, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run go generate ./definitions", name)
		}
	}
	entries, err := os.ReadDir(filepath.Join(root, "gdn"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if files["gdn/"+e.Name()] == nil {
			t.Errorf("gdn/%s: not in the table", e.Name())
		}
	}
}
