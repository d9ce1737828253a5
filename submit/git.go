package submit

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

	"fisub/internal/plain"
)

var (
	// ErrNoGit says that there is no program git.
	ErrNoGit = errors.New("git: not found")
	// ErrNoRepository says that a folder is in no working tree of git.
	ErrNoRepository = errors.New("not a git repository")
	// ErrOffline says that a remote gave no answer in time, or none at all.
	ErrOffline = errors.New("no answer")
)

// maxOutput bounds what is read of one git command, in bytes.
const maxOutput = 64 << 20

// remoteLimit is how long a remote has to list its tags.
const remoteLimit = 15 * time.Second

// A GitError is a git command that failed, in git's words, without what is secret in URLs.
type GitError struct {
	Command string // "push"
	Text    string // its complaint, one or more lines
	err     error
}

func (e *GitError) Error() string { return "git " + e.Command + ": " + e.Text }
func (e *GitError) Unwrap() error { return e.err }

// A Repository is a working tree and its history. It is read only, but for Tag and Push.
type Repository struct {
	Top string // the root of the working tree, links resolved
}

// Open finds the working tree that holds the folder dir. The error is, or wraps, ErrNoGit or ErrNoRepository, where it is that.
func Open(ctx context.Context, dir string) (*Repository, error) {
	if _, err := exec.LookPath("git"); err != nil {
		return nil, ErrNoGit
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := &Repository{Top: abs}
	top, err := r.line(ctx, "rev-parse", "--show-toplevel")
	var failed *GitError
	if errors.As(err, &failed) && strings.Contains(failed.Text, "not a git repository") {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoRepository)
	}
	if err != nil {
		return nil, err
	}
	r.Top = top
	return r, nil
}

// Relative gives the path of file below Top, with slashes; "." is Top itself. It is false where file is not below it.
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

// environment is that of git: nothing asks for a password, messages are in English, and the variables by which a hook or a
// script names its own repository are gone.
func environment(more ...string) []string {
	own := map[string]bool{"GIT_DIR": true, "GIT_WORK_TREE": true, "GIT_INDEX_FILE": true, "GIT_OBJECT_DIRECTORY": true, "GIT_PREFIX": true,
		"GIT_ALTERNATE_OBJECT_DIRECTORIES": true, "GIT_COMMON_DIR": true, "GIT_NAMESPACE": true, "GIT_LITERAL_PATHSPECS": true, "GIT_ASKPASS": true,
		"GIT_TERMINAL_PROMPT": true, "GIT_OPTIONAL_LOCKS": true, "LC_ALL": true, "LANGUAGE": true, "GIT_TRACE": true, "GIT_CURL_VERBOSE": true, "GIT_TRACE_CURL": true}
	var env []string
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !own[name] {
			env = append(env, v)
		}
	}
	return append(append(env, "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "GIT_OPTIONAL_LOCKS=0", "GIT_LITERAL_PATHSPECS=1", "LC_ALL=C"), more...)
}

// run gives what git prints on stdout.
func (r *Repository) run(ctx context.Context, stdin string, env []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", r.Top}, args...)...)
	cmd.Env = environment(env...)
	cmd.Stdin = strings.NewReader(stdin)
	out, complaint := &plain.Buffer{Limit: maxOutput}, &plain.Buffer{Limit: 1 << 16}
	cmd.Stdout, cmd.Stderr = out, complaint
	cmd.WaitDelay = time.Second // a helper of git's that has outlived it may hold the pipes
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		name := args[0]
		if name == "-c" {
			name = args[2]
		}
		text := Scrub(strings.TrimSpace(complaint.String()))
		return out.Bytes(), &GitError{Command: name, Text: cmp.Or(text, err.Error()), err: err}
	}
	if out.Over() {
		return nil, fmt.Errorf("git %s: more than %d MiB", args[0], maxOutput>>20)
	}
	return out.Bytes(), nil
}

// line is what git prints, without the newline at its end.
func (r *Repository) line(ctx context.Context, args ...string) (string, error) {
	out, err := r.run(ctx, "", nil, args...)
	return strings.TrimSuffix(string(out), "\n"), err
}

var (
	userinfo = regexp.MustCompile(`(\w://)[^/\s]*@`)
	query    = regexp.MustCompile(`(\w://[^\s?#'"]*)[?#][^\s'"]*`)
)

// Scrub takes user names, passwords and tokens out of the URLs in text.
func Scrub(text string) string {
	return query.ReplaceAllString(userinfo.ReplaceAllString(text, "$1"), "$1")
}

// A Head is the commit that is checked out.
type Head struct {
	Commit string // "" where nothing is committed yet
	Branch string // "" where HEAD is detached
}

// Head reads HEAD.
func (r *Repository) Head(ctx context.Context) (Head, error) {
	var h Head
	var failed *GitError
	branch, err := r.line(ctx, "symbolic-ref", "--quiet", "--short", "HEAD")
	if err == nil {
		h.Branch = branch
	} else if !errors.As(err, &failed) {
		return h, err
	}
	h.Commit, err = r.line(ctx, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
	if errors.As(err, &failed) {
		return Head{Branch: h.Branch}, nil
	}
	return h, err
}

// A Change is a file that differs from HEAD.
type Change struct {
	Path  string // below Top
	State string // "modified", "added", "deleted", "renamed", "unmerged", "untracked", "ignored"
}

var states = map[byte]string{'M': "modified", 'T': "modified", 'A': "added", 'D': "deleted", 'R': "renamed", 'C': "added", 'U': "unmerged"}

// Changes lists what differs from HEAD at and below paths, sorted as git does: the working tree's changes, those that are
// staged, and files that git ignores or does not know.
func (r *Repository) Changes(ctx context.Context, paths []string) ([]Change, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	out, err := r.run(ctx, "", nil, append([]string{"status", "--porcelain=v1", "-z", "--no-renames", "--untracked-files=all", "--ignored=traditional", "--"}, paths...)...)
	if err != nil {
		return nil, err
	}
	var changes []Change
	for _, entry := range strings.Split(string(out), "\x00") {
		if len(entry) < 4 {
			continue
		}
		c := Change{Path: entry[3:]}
		switch code := entry[:2]; {
		case code == "??":
			c.State = "untracked"
		case code == "!!":
			c.State = "ignored"
		case code[1] != ' ':
			c.State = states[code[1]]
		default:
			c.State = states[code[0]]
		}
		c.State = cmp.Or(c.State, "changed")
		changes = append(changes, c)
	}
	return changes, nil
}

// Checkout puts the commit into a new temporary folder as git makes it with its own settings: filters, hooks and line ends of
// this user's or this clone's configuration are not used, and neither are submodules. The caller calls remove.
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
	temp, err := os.MkdirTemp("", "fisub-checkout-*")
	if err != nil {
		return "", nil, err
	}
	remove = func() { os.RemoveAll(temp) }
	defer func() {
		if err != nil {
			remove()
		}
	}()
	clean := &Repository{Top: temp}
	settings := []string{"GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CONFIG_SYSTEM=" + os.DevNull, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_COUNT=0", "GIT_CONFIG_PARAMETERS=",
		"GIT_ATTR_NOSYSTEM=1", "GIT_NO_REPLACE_OBJECTS=1", "XDG_CONFIG_HOME=" + filepath.Join(temp, ".git")}
	if _, err := clean.run(ctx, "", settings, "init", "--quiet", "--template=", "--object-format="+format); err != nil {
		return "", nil, err
	}
	alternates := filepath.Join(temp, ".git", "objects", "info", "alternates")
	if err := os.MkdirAll(filepath.Dir(alternates), 0o755); err != nil {
		return "", nil, err
	}
	if err := os.WriteFile(alternates, []byte(objects+"\n"), 0o644); err != nil {
		return "", nil, err
	}
	if _, err := clean.run(ctx, "", settings, "checkout", "--quiet", "--detach", commit); err != nil {
		return "", nil, err
	}
	return temp, remove, nil
}
