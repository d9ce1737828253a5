package session

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"fisub/internal/cache"
	"fisub/internal/event"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/internal/usage"
)

const (
	sealFile   = "seal.json" // beside the config
	sealSchema = "fisub.seal/1"
)

// sealed is what the file has. Facts are by name, and compared as text.
type sealed struct {
	Schema string            `json:"schema"`
	Facts  map[string]string `json:"facts"`
}

// facts are what the verdicts and figures of s depend on, but for its sources and the machine. What a run has none of
// is "": a baseline, on the emulator.
func (u *Setup) facts(ctx context.Context, s *Submission) (map[string]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := digestFile(self)
	if err != nil {
		return nil, err
	}
	ws, err := u.data.Workloads(s.Definition.Name, u.Set)
	if err != nil {
		return nil, err
	}
	inputs, err := u.data.Digest(ctx, s.Definition, ws)
	if err != nil {
		return nil, err
	}
	t, baseline := u.Profile.Tolerance, ""
	if b := u.Baseline; b != nil {
		baseline = b.Name + " " + b.Solution.Hash()
	}
	return map[string]string{
		"fisub": u.project.Version + " " + program,
		"definition": fmt.Sprintf("%s %x", s.Definition.Name,
			sha256.Sum256([]byte(s.Definition.JSON(trace.Compact)))),
		"set":       u.Set,
		"workloads": inputs,
		"profile":   u.Profile.Name,
		"timer":     u.Timer,
		"tolerance": fmt.Sprintf("atol %g, rtol %g, matched ratio %g", t.Atol, t.Rtol, t.MatchedRatio),
		"baseline":  baseline,
	}, nil
}

func digestFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return fmt.Sprintf("%x", sum.Sum(nil)), err
}

// sealState says how what judges s agrees with the seal in its root; nil where there is none. A seal that cannot be
// compared is broken.
func (u *Setup) sealState(ctx context.Context, s *Submission) *event.Seal {
	file := filepath.Join(s.Root, sealFile)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	state := &event.Seal{SHA256: fmt.Sprintf("%x", sha256.Sum256(data))}
	var was sealed
	var now map[string]string
	if err == nil {
		err = json.Unmarshal(data, &was)
	}
	if err == nil && was.Schema != sealSchema {
		err = fmt.Errorf("its schema is %q, not %q", was.Schema, sealSchema)
	}
	if err == nil {
		now, err = u.facts(ctx, s)
	}
	if err != nil {
		state.Broken = []string{sealFile + ": " + err.Error()}
		return state
	}
	for name := range maps.Keys(now) {
		if _, ok := was.Facts[name]; !ok {
			was.Facts[name] = "" // taken out of the file
		}
	}
	for _, name := range slices.Sorted(maps.Keys(was.Facts)) {
		old, is := was.Facts[name], now[name]
		if old != is && (name != "baseline" || is != "") {
			state.Broken = append(state.Broken, fmt.Sprintf("%s: %s, sealed: %s", name, orNone(is), orNone(old)))
		}
	}
	return state
}

func sealText(s *event.Seal) string {
	if s != nil && s.Broken != nil {
		return "broken"
	}
	return "not broken"
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// A Sealing is what fisub seal did, or found.
type Sealing struct {
	File string `json:"file"`
	*event.Seal
	Facts map[string]string `json:"facts"` // now
}

// Seal writes what judges s, as its config has it, into a file beside the config; with check it says how that agrees
// with the file. It replaces no seal that says otherwise.
func (p *Project) Seal(ctx context.Context, s *Submission, check bool, log Log) (*Sealing, error) {
	u, err := p.NewSetup(s, Options{}, nil)
	if err != nil {
		return nil, err
	}
	if u.Baseline, err = p.FindBaseline(s, "", nil, "cuda", log); err != nil {
		return nil, err
	}
	found := &Sealing{File: Relative(filepath.Join(s.Root, sealFile)), Seal: u.sealState(ctx, s)}
	if found.Facts, err = u.facts(ctx, s); err != nil {
		return nil, usage.Invalid(err)
	}
	switch {
	case check && found.Seal == nil:
		return nil, usage.Errorf("fisub seal writes it", "%s: there is no seal", found.File)
	case found.Seal != nil && !check && found.Broken != nil:
		return nil, usage.Errorf("fisub seal --check says what differs; remove the file to seal anew",
			"%s: there is a seal already, and it says otherwise", found.File)
	case found.Seal == nil:
		var text bytes.Buffer
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(sealed{sealSchema, found.Facts}); err != nil {
			return nil, err
		}
		if err := cache.WriteFile(filepath.Join(s.Root, sealFile), text.Bytes(), 0o644); err != nil {
			return nil, err
		}
		found.Seal = &event.Seal{SHA256: fmt.Sprintf("%x", sha256.Sum256(text.Bytes()))}
	}
	return found, nil
}

// Text says what was sealed, or what the seal agrees with, a fact a line.
func (s *Sealing) Text() string {
	text := fmt.Sprintf("%-10s  %s, sha256 %s\n", "seal", s.File, s.SHA256)
	for _, name := range slices.Sorted(maps.Keys(s.Facts)) {
		text += fmt.Sprintf("%-10s  %s\n", name, plain.Line(orNone(s.Facts[name])))
	}
	if s.Broken == nil {
		text += "not broken\n"
	}
	return text
}
