package work

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A client killed during Prepare leaves no files on the host.
func TestPrepareCut(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	if err := os.MkdirAll(filepath.Join(dir, "store"), 0o700); err != nil {
		t.Fatal(err)
	}
	// The reader closes the pipe after the line of the folders.
	out, err := exec.Command("sh", "-c", `sh -c "$1" sh "$2" make | sed '/^folder/q' >/dev/null; wait`, "sh", probe,
		dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "store", ".*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}
