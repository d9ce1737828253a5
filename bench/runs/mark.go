package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"fisub/internal/cache"
	"fisub/internal/plain"
)

// markFile is the file of a run folder that holds its Mark.
const markFile = "mark.json"

// A Mark is what the user says of a run. It is no part of what was measured, and may change at any time.
type Mark struct {
	Note   string `json:"note,omitempty"`
	Pinned bool   `json:"pinned,omitempty"` // Remove leaves the run
}

// readMark reads the mark of the run folder at path. One that cannot be read counts as none.
func readMark(path string) (m Mark) {
	if data, err := plain.ReadFile(filepath.Join(path, markFile), 1<<20); err == nil {
		_ = json.Unmarshal(data, &m)
	}
	return m
}

// ChangeMark changes the mark of the run folder at path.
func ChangeMark(path string, change func(*Mark)) error {
	m := readMark(path)
	change(&m)
	if m == (Mark{}) {
		if err := os.Remove(filepath.Join(path, markFile)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return cache.WriteFile(filepath.Join(path, markFile), append(data, '\n'), 0o644)
}

// ErrPinned says that a run is to stay.
var ErrPinned = errors.New("it is pinned")

// Remove removes the run folder at path, in one moment for whoever lists the runs. It refuses one that is pinned, and
// one that a process writes, with errors that wrap ErrPinned and ErrRunning.
func Remove(path string) error {
	id := filepath.Base(path)
	if readMark(path).Pinned {
		return fmt.Errorf("run %s: %w", id, ErrPinned)
	}
	if f, err := os.Open(filepath.Join(path, eventsFile)); err == nil {
		defer f.Close()
		if !lock(f, syscall.LOCK_EX) {
			return fmt.Errorf("run %s: %w", id, ErrRunning)
		}
	}
	gone := filepath.Join(filepath.Dir(filepath.Dir(path)), ".removed-"+id)
	if err := os.Rename(path, gone); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}
