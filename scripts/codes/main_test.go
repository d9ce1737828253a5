package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// codes.go is up to date with the headers.
func TestFresh(t *testing.T) {
	dir := filepath.Join("..", "..", "device", "vgpu")
	want, err := generate(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "codes.go")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("device/vgpu/codes.go is stale: run go generate ./device/vgpu")
	}
}
