package workloads

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"fisub/internal/trace"
)

// Digest is the SHA-256 of workloads and of the content of the input files that they name, each of which is read once.
// Of the embedded dataset missing files are made first. Inputs that a workload declares random follow from its uuid.
func (d *Dataset) Digest(ctx context.Context, def *trace.Definition, ws []*trace.Workload) (string, error) {
	if err := d.kept(); err != nil {
		return "", err
	}
	if len(ws) > 0 {
		d = d.home(def, ws[0])
	}
	if d.embedded {
		blobs, err := d.blobsOf(def, ws)
		if err != nil {
			return "", err
		}
		for _, b := range blobs {
			if _, err := b.make(ctx, d.root, true); err != nil {
				return "", err
			}
		}
	}
	sum, seen := sha256.New(), map[string]bool{}
	for _, w := range ws {
		fmt.Fprintf(sum, "%s\n", w.JSON(trace.Compact))
		for name := range def.Inputs.All() {
			source, _ := w.Inputs.Get(name)
			if source.Kind != trace.Safetensors || seen[source.Path] {
				continue
			}
			seen[source.Path] = true
			if err := d.addFile(sum, source.Path); err != nil {
				return "", fmt.Errorf("workload %s: '%s': %w", w.UUID, name, err)
			}
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// addFile writes the digest of a file to sum: where one ends and the next begins does not matter then.
func (d *Dataset) addFile(sum io.Writer, path string) error {
	file, err := d.resolve(path)
	if err != nil {
		return err
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	one := sha256.New()
	if _, err := io.Copy(one, f); err != nil {
		return err
	}
	fmt.Fprintf(sum, "%x\n", one.Sum(nil))
	return nil
}
