// Package git runs git on the repository of a submission. Only Tag and Push write; nothing commits, moves a tag or
// forces a push. A revision has the content of its clean checkout.
package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"fisub/internal/cache"
	"fisub/internal/hint"
	"fisub/internal/plain"
)

var (
	// ErrMissing reports that the git program is not installed.
	ErrMissing = hint.Wrap(errors.New("git: not found"), "install git")
	// ErrNoRepository reports that a folder is not in a git working tree.
	ErrNoRepository = hint.Wrap(errors.New("not a git repository"), "run git init")
	// ErrOffline reports that a remote is unreachable or did not answer in time.
	ErrOffline = errors.New("no answer")
)

// maxOutput limits the output of one git command, in bytes.
const maxOutput = 64 << 20

// An Error is a failed git command with git's message, without credentials in URLs.
type Error struct {
	Command string // "push"
	Text    string // git's message, one or more lines
	err     error
}

func (e *Error) Error() string { return "git " + e.Command + ": " + e.Text }
func (e *Error) Unwrap() error { return e.err }

// Advice returns the hint of the error.
func (e *Error) Advice() string { return read(signs, e.Text) }

// A Repository is a working tree and its history.
type Repository struct {
	Top string // root of the working tree, symbolic links resolved
}

// Root returns the absolute path of the nearest folder with a .git, dir itself or above it, or "". It does not run git.
func Root(dir string) string {
	at, err := filepath.Abs(dir)
	for err == nil {
		if _, err := os.Lstat(filepath.Join(at, ".git")); err == nil {
			return at
		}
		if at == filepath.Dir(at) {
			break
		}
		at = filepath.Dir(at)
	}
	return ""
}

// Open returns the working tree that contains the folder dir. The error may wrap ErrMissing or ErrNoRepository.
func Open(ctx context.Context, dir string) (*Repository, error) {
	if _, err := exec.LookPath("git"); err != nil {
		return nil, ErrMissing
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	top, err := (&Repository{Top: abs}).line(ctx, "rev-parse", "--show-toplevel")
	if failed, ok := errors.AsType[*Error](err); ok && strings.Contains(failed.Text, "not a git repository") {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoRepository)
	}
	return &Repository{Top: top}, err
}

// IsMissing reports whether err wraps ErrMissing or ErrNoRepository.
func IsMissing(err error) bool { return errors.Is(err, ErrMissing) || errors.Is(err, ErrNoRepository) }

// Relative returns the slash-separated path of file relative to Top, or false if file is outside Top.
func (r *Repository) Relative(file string) (string, bool) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return "", false
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(dir, filepath.Base(abs))
	}
	rel, err := filepath.Rel(r.Top, abs)
	if err != nil || !filepath.IsLocal(rel) {
		return "", false
	}
	return filepath.ToSlash(rel), true
}

// own matches the variables that environment sets, and those that select another repository in hooks and scripts.
var own = regexp.MustCompile(`^(GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|PREFIX|ALTERNATE_OBJECT_DIRECTORIES|` +
	`COMMON_DIR|NAMESPACE|LITERAL_PATHSPECS|ASKPASS|TERMINAL_PROMPT|OPTIONAL_LOCKS|TRACE|CURL_VERBOSE|TRACE_CURL)|` +
	`LC_ALL|LANGUAGE)=`)

// environment returns git's environment: no password prompts, and messages in English.
func environment(more ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !own.MatchString(v) {
			env = append(env, v)
		}
	}
	env = append(env, "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "GIT_OPTIONAL_LOCKS=0", "GIT_LITERAL_PATHSPECS=1",
		"LC_ALL=C")
	return append(env, more...)
}

// A command is one run of git.
type command struct {
	stdin string
	env   []string
}

// run returns git's stdout.
func (r *Repository) run(ctx context.Context, c command, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", r.Top, "-c", "core.fsmonitor=false"}, args...)...)
	cmd.Env = environment(c.env...)
	cmd.Stdin = strings.NewReader(c.stdin)
	out, complaint := &plain.Buffer{Limit: maxOutput}, &plain.Buffer{Limit: 1 << 16}
	cmd.Stdout, cmd.Stderr = out, complaint
	cmd.WaitDelay = time.Second // a surviving helper process of git may hold the pipes
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		text := scrub(strings.TrimSpace(complaint.String()))
		return out.Bytes(), &Error{Command: args[0], Text: cmp.Or(text, err.Error()), err: err}
	}
	if out.Over() {
		return nil, fmt.Errorf("git %s: more than %d MiB", args[0], maxOutput>>20)
	}
	return out.Bytes(), nil
}

// line returns git's stdout without the final newline.
func (r *Repository) line(ctx context.Context, args ...string) (string, error) {
	out, err := r.run(ctx, command{}, args...)
	return strings.TrimSuffix(string(out), "\n"), err
}

var (
	userinfo = regexp.MustCompile(`(\w://)[^/\s]*@`)
	query    = regexp.MustCompile(`(\w://[^\s?#'"]*)[?#][^\s'"]*`)
)

// scrub removes user names, passwords and tokens from the URLs in text.
func scrub(text string) string {
	return query.ReplaceAllString(userinfo.ReplaceAllString(text, "$1"), "$1")
}

// A Head is the checked-out commit.
type Head struct {
	Commit string // "" if nothing is committed yet
	Branch string // "" if HEAD is detached
}

// Head returns the checked-out commit and branch.
func (r *Repository) Head(ctx context.Context) (h Head, err error) {
	h.Branch, err = r.line(ctx, "symbolic-ref", "--quiet", "--short", "HEAD")
	if _, failed := errors.AsType[*Error](err); err != nil && !failed {
		return h, err
	}
	h.Commit, err = r.Commit(ctx, "HEAD")
	return h, err
}

// Commit returns the commit that revision names, or "" if git cannot resolve it.
func (r *Repository) Commit(ctx context.Context, revision string) (string, error) {
	commit, err := r.line(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", revision+"^{commit}")
	if _, ok := errors.AsType[*Error](err); ok {
		return "", nil
	}
	return commit, err
}

// UserName returns git's user.name for dir, or its nearest existing parent; "" if it is not set.
func UserName(ctx context.Context, dir string) string {
	ctx, cancel := context.WithTimeout(ctx, remoteLimit)
	defer cancel()
	for dir != filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			break
		}
		dir = filepath.Dir(dir)
	}
	name, err := (&Repository{Top: dir}).line(ctx, "config", "user.name")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(name)
}

// Tracked reports whether the index contains file, a path relative to Top.
func (r *Repository) Tracked(ctx context.Context, file string) bool {
	out, err := r.line(ctx, "ls-files", "--", file)
	return err == nil && out != ""
}

// A Change is a file that differs from HEAD.
type Change struct {
	Path  string // relative to Top
	State string // "modified", "added", "deleted", "renamed", "unmerged", "untracked", "ignored"
}

var states = map[byte]string{'M': "modified", 'T': "modified", 'A': "added", 'D': "deleted", 'R': "renamed",
	'C': "added", 'U': "unmerged", '?': "untracked", '!': "ignored"}

// A Hidden is a file whose changes git does not report, because of its flag "skip-worktree" or "assume-unchanged".
type Hidden struct{ Path, Flag string }

// Hidden returns the hidden files at or below paths, relative to Top.
func (r *Repository) Hidden(ctx context.Context, paths ...string) (files []Hidden, err error) {
	if len(paths) == 0 {
		return nil, nil
	}
	out, err := r.run(ctx, command{}, append([]string{"ls-files", "-v", "-z", "--"}, paths...)...)
	for entry := range strings.SplitSeq(string(out), "\x00") {
		switch kind, file, _ := strings.Cut(entry, " "); {
		case kind == "S":
			files = append(files, Hidden{file, "skip-worktree"})
		case kind != strings.ToUpper(kind):
			files = append(files, Hidden{file, "assume-unchanged"})
		}
	}
	return files, err
}

// Changes returns the files at or below paths that differ from HEAD, in git's order, including staged, untracked and
// ignored files.
func (r *Repository) Changes(ctx context.Context, paths ...string) (changes []Change, err error) {
	if len(paths) == 0 {
		return nil, nil
	}
	args := []string{"status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--ignored=traditional",
		"--"}
	out, err := r.run(ctx, command{}, append(args, paths...)...)
	for entry := range strings.SplitSeq(string(out), "\x00") {
		if len(entry) > 3 {
			code := entry[1]
			if code == ' ' {
				code = entry[0]
			}
			changes = append(changes, Change{Path: entry[3:], State: cmp.Or(states[code], "changed")})
		}
	}
	return changes, err
}

// State returns the checked-out commit of the working tree around dir, or "", and reports whether names in dir differ
// from it.
func State(ctx context.Context, dir string, names ...string) (commit string, dirty bool) {
	r, err := Open(ctx, dir)
	if err != nil {
		return "", false
	}
	commit, _ = r.Commit(ctx, "HEAD")
	var paths []string
	for _, name := range names {
		if below, ok := r.Relative(filepath.Join(dir, name)); ok {
			paths = append(paths, below)
		}
	}
	changes, err := r.Changes(ctx, paths...)
	for _, c := range changes {
		dirty = dirty || c.State != "ignored"
	}
	return commit, dirty || err != nil
}

// Checkout checks out commit into a new temporary folder with git's defaults: without filters, hooks and line-ending
// settings of this user or clone, and without submodules. The caller must call remove.
func (r *Repository) Checkout(ctx context.Context, commit string) (dir string, remove func(), err error) {
	objects, err := r.line(ctx, "rev-parse", "--path-format=absolute", "--git-path", "objects")
	if err != nil {
		return "", nil, err
	}
	if strings.ContainsAny(objects, "\n\"") {
		return "", nil, fmt.Errorf("%q: a folder whose name git cannot refer to", objects)
	}
	format, err := r.line(ctx, "rev-parse", "--show-object-format")
	if err != nil {
		return "", nil, err
	}
	temp, remove, err := cache.TempDir("fisub-checkout")
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			remove()
		}
	}()
	clean := &Repository{Top: temp}
	settings := command{env: []string{"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_SYSTEM=" + os.DevNull,
		"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=0", "GIT_CONFIG_PARAMETERS=", "GIT_ATTR_NOSYSTEM=1",
		"GIT_NO_REPLACE_OBJECTS=1", "XDG_CONFIG_HOME=" + filepath.Join(temp, ".git")}}
	if _, err = clean.run(ctx, settings, "init", "--quiet", "--template=", "--object-format="+format); err != nil {
		return "", nil, err
	}
	alternates := filepath.Join(temp, ".git", "objects", "info", "alternates")
	if err = os.MkdirAll(filepath.Dir(alternates), 0o755); err != nil {
		return "", nil, err
	}
	if err = os.WriteFile(alternates, []byte(objects+"\n"), 0o644); err != nil {
		return "", nil, err
	}
	if _, err = clean.run(ctx, settings, "checkout", "--quiet", "--detach", commit); err != nil {
		return "", nil, err
	}
	return temp, remove, nil
}

// LinkOut returns the target of the symbolic link name if that is absolute or outside the folder root, so that a clone
// lacks it; else "". With root "" it returns every link's target.
func LinkOut(root, name string) string {
	text, err := os.Readlink(name)
	if err != nil || filepath.IsAbs(text) || root == "" {
		return text
	}
	target, err := filepath.EvalSymlinks(name)
	if err != nil { // a dangling link, or one to itself
		target = filepath.Join(real(filepath.Dir(name)), text)
	}
	if target, err = filepath.Abs(target); err == nil {
		if rel, err := filepath.Rel(real(root), target); err == nil && filepath.IsLocal(rel) {
			return ""
		}
	}
	return text
}

// real returns the absolute path of a folder without links, if it has one.
func real(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return path
}
