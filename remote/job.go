package remote

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"fisub/internal/plain"
)

// Limits for a job: the host does not trust the client.
const (
	maxFiles = 10000
	maxArgs  = 1 << 16 // total bytes of all arguments
)

var (
	idForm  = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	envForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// ValidID reports whether id may name a job and its folder.
func ValidID(id string) bool { return idForm.MatchString(id) }

// ValidHash reports whether s is a valid File.SHA256, and so a safe file name.
func ValidHash(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == 32 && strings.ToLower(s) == s
}

// Program is the name of the agent, the fisub binary, in a bundle.
const Program = "fisub"

// Program checks the job and returns the agent in its bundle.
func (j *Job) Program() (File, error) {
	at := slices.IndexFunc(j.Files, func(f File) bool { return f.Name == Program && f.Exec })
	if at < 0 {
		return File{}, errors.Join(j.Check(), fmt.Errorf("job %.80q: no executable %s in its bundle", j.ID, Program))
	}
	return j.Files[at], j.Check()
}

// FileAt describes a local file. The result has no Name.
func FileAt(path string) (File, error) {
	r, err := plain.Open(path)
	if err != nil {
		return File{}, err
	}
	defer r.Close()
	h := sha256.New()
	n, err := io.Copy(h, r)
	return File{SHA256: hex.EncodeToString(h.Sum(nil)), Size: n, Path: path}, err
}

// Mode returns the permissions of the file on the host.
func (f *File) Mode() fs.FileMode {
	if f.Exec {
		return 0o555
	}
	return 0o444
}

// Check reports invalid fields of the job and its files.
func (j *Job) Check() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("job %.80q: %s", j.ID, fmt.Sprintf(format, args...)))
	}
	if !ValidID(j.ID) {
		fault("not a valid id")
	}
	if j.Limit <= 0 {
		fault("no time limit")
	}
	if len(j.Files) > maxFiles {
		fault("%d files, more than %d", len(j.Files), maxFiles)
	}
	programs, names := map[string]bool{}, map[string]bool{}
	for _, f := range j.Files {
		switch {
		case !validName(f.Name):
			fault("file name %.200q is outside the bundle", f.Name)
		case names[f.Name]:
			fault("duplicate file %.200s", f.Name)
		case !ValidHash(f.SHA256):
			fault("file %s: invalid SHA-256 %.80q", f.Name, f.SHA256)
		case f.Size < 0 || f.Size > 1<<40:
			fault("file %s: %d bytes", f.Name, f.Size)
		}
		names[f.Name] = true
		programs[f.Name] = f.Exec
	}
	for name := range names {
		for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if names[dir] {
				fault("%q is both a file and a folder", dir)
			}
		}
	}
	size := 0
	for _, arg := range j.Args {
		if size += len(arg) + 1; strings.ContainsRune(arg, 0) {
			fault("an argument with a zero byte")
		}
	}
	switch {
	case len(j.Args) == 0:
		fault("no program")
	case !programs[j.Args[0]]:
		fault("program %.200q is not an executable file of the bundle", j.Args[0])
	case size > maxArgs:
		fault("arguments of %d bytes, more than %d", size, maxArgs)
	}
	for name, value := range j.Env {
		if !envForm.MatchString(name) || strings.ContainsRune(value, 0) {
			fault("%.80q is not valid in an environment", name)
		}
	}
	return errors.Join(faults...)
}

func validName(name string) bool {
	return name != "" && len(name) <= 1000 && name == path.Clean(name) && !path.IsAbs(name) && name != "." &&
		name != ".." && !strings.HasPrefix(name, "../") && !strings.ContainsAny(name, "\x00\\\n")
}
