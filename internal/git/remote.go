package git

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"fisub/internal/hint"
	"fisub/internal/plain"
)

// maxLine bounds a line that is git's or a commit's, in bytes.
const maxLine = 1000

// remoteLimit is how long a remote has to list its tags.
const remoteLimit = 15 * time.Second

// A Remote is where a tag is pushed to.
type Remote struct {
	Name string   `json:"name"`
	URLs []string `json:"urls"` // for pushing, without user names, passwords and tokens
}

// Remotes lists the names of the remotes, sorted.
func (r *Repository) Remotes(ctx context.Context) ([]string, error) {
	out, err := r.line(ctx, "remote")
	return strings.Fields(out), err
}

// Remote finds the remote of that name; for "" it is the one of the branch, else origin, else the only one. It is nil
// where there is none.
func (r *Repository) Remote(ctx context.Context, name, branch string) (*Remote, error) {
	names, err := r.Remotes(ctx)
	if err != nil {
		return nil, err
	}
	if name == "" && branch != "" {
		of, _ := r.line(ctx, "config", "--get", "branch."+branch+".remote")
		if slices.Contains(names, of) {
			name = of
		}
	}
	switch {
	case name != "":
	case slices.Contains(names, "origin"):
		name = "origin"
	case len(names) == 1:
		name = names[0]
	}
	if !slices.Contains(names, name) {
		return nil, nil
	}
	urls, err := r.line(ctx, "remote", "get-url", "--push", "--all", "--", name)
	if err != nil {
		return nil, err
	}
	found := &Remote{Name: name}
	for url := range strings.Lines(urls) {
		found.URLs = append(found.URLs, scrub(strings.TrimSuffix(url, "\n")))
	}
	return found, nil
}

// batch keeps ssh from asking for a passphrase or about a host's key, unless the user has chosen the command.
func (r *Repository) batch(ctx context.Context) []string {
	for _, v := range environment() {
		if strings.HasPrefix(v, "GIT_SSH_COMMAND=") || strings.HasPrefix(v, "GIT_SSH=") {
			return nil
		}
	}
	if own, err := r.line(ctx, "config", "--get", "core.sshCommand"); err == nil && own != "" {
		return nil
	}
	return []string{"GIT_SSH_COMMAND=ssh -oBatchMode=yes"}
}

// Refs are the branches and tags of a remote: name to object.
type Refs map[string]string

// ask runs a command that waits for the remote, for as long as remoteLimit.
func (r *Repository) ask(ctx context.Context, remote string, args ...string) ([]byte, error) {
	limit, cancel := context.WithTimeout(ctx, remoteLimit)
	defer cancel()
	out, err := r.run(limit, command{env: r.batch(ctx)}, args...)
	if err != nil && limit.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: %w in %v", remote, ErrOffline, remoteLimit)
	}
	return out, err
}

// List asks the remote for its refs. The error wraps ErrOffline where the remote gives no answer.
func (r *Repository) List(ctx context.Context, remote string) (Refs, error) {
	out, err := r.ask(ctx, remote, "ls-remote", "--quiet", "--", remote)
	if failed, ok := errors.AsType[*Error](err); ok {
		return nil, fmt.Errorf("%s: %w: %s", remote, ErrOffline, plain.First(failed.Text))
	}
	if err != nil {
		return nil, err
	}
	refs := Refs{}
	for line := range strings.Lines(string(out)) {
		if object, name, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			refs[name] = object
		}
	}
	return refs, nil
}

// Tag is the object of a tag of the remote, "" where it has none of that name.
func (refs Refs) Tag(name string) string { return refs["refs/tags/"+name] }

// Names are the names of the remote's tags.
func (refs Refs) Names() (names []string) {
	for ref := range refs {
		if name, ok := strings.CutPrefix(ref, "refs/tags/"); ok && !strings.HasSuffix(name, "^{}") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Lacking lists the commits up to commit that a remote with refs has not, the newest first, each as its short hash and
// first line; n counts all of them, of which at most limit are given.
func (r *Repository) Lacking(ctx context.Context, commit string, refs Refs, limit int) (
	commits []string, n int, err error) {
	var revs strings.Builder
	fmt.Fprintln(&revs, commit)
	for _, object := range refs {
		fmt.Fprintln(&revs, "^"+object)
	}
	out, err := r.run(ctx, command{stdin: revs.String()}, "rev-list", "--ignore-missing", "--stdin", "--no-commit-header",
		"--format=%h %s")
	if err != nil {
		return nil, 0, err
	}
	for line := range strings.Lines(string(out)) {
		if n++; n <= limit {
			commits = append(commits, plain.Brief(line, maxLine))
		}
	}
	return commits, n, nil
}

// Preview asks the remote whether it would take the commit, or the object of a tag, as a new tag of that name. Nothing
// is sent, and no hook of this repository runs. The error wraps ErrOffline where it gives no answer in time.
func (r *Repository) Preview(ctx context.Context, remote, object, tag string) error {
	_, err := r.ask(ctx, remote, "push", "--dry-run", "--porcelain", "--no-verify", "--no-follow-tags",
		"--recurse-submodules=no", "--", remote, object+":refs/tags/"+tag)
	return refused(err)
}

// Push sends the tag, and the commits that it needs, and nothing else. A tag of the remote is never overwritten.
func (r *Repository) Push(ctx context.Context, remote, tag string) error {
	out, err := r.run(ctx, command{env: r.batch(ctx)}, "push", "--porcelain", "--no-follow-tags",
		"--recurse-submodules=no", "--", remote, "refs/tags/"+tag)
	var failed *Error
	if errors.As(err, &failed) {
		for line := range strings.Lines(string(out)) {
			// "!", the refs, and the reason in brackets, which the complaint does not always repeat.
			if why, ok := strings.CutPrefix(line, "!\t"); ok {
				_, why, _ = strings.Cut(strings.TrimSpace(why), "\t")
				failed.Text = cmp.Or(why, "refused") + "\n" + failed.Text
			}
		}
	}
	if err = refused(err); err != nil {
		err = hint.Wrap(err, pushHint(err, remote, tag))
	}
	return err
}

// refused leaves out of git's complaint what is not about this push.
func refused(err error) error {
	var failed *Error
	if !errors.As(err, &failed) {
		return err
	}
	var lines []string
	for line := range strings.Lines(failed.Text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "hint: ") &&
			!strings.HasPrefix(line, "error: failed to push some refs") && !strings.HasPrefix(line, "To ") && line != "Done" {
			lines = append(lines, plain.Brief(line, maxLine))
		}
	}
	if len(lines) > 0 {
		failed.Text = scrub(strings.Join(lines, "\n"))
	}
	return err
}

// A Tag is a tag of the repository that leads to a commit.
type Tag struct {
	Name      string    `json:"name"`
	Object    string    `json:"object"` // hash of the tag itself; of a lightweight one, which has none, the commit's
	Commit    string    `json:"commit"`
	Created   time.Time `json:"created"`
	Annotated bool      `json:"annotated"`
	Message   string    `json:"-"` // "" of a lightweight one
}

// Tags lists the tags that lead to commits, the newest first: the contest takes the newest of a definition. Of two of
// the same second the one with the higher number in its name is the newer.
func (r *Repository) Tags(ctx context.Context) ([]Tag, error) {
	out, err := r.run(ctx, command{}, "for-each-ref", "--sort=-version:refname", "--sort=-creatordate",
		"--format=%(refname)%00%(objecttype)%00%(objectname)%00"+
			"%(*objecttype)%00%(*objectname)%00%(creatordate:unix)%00%(contents)%00", "refs/tags")
	if err != nil {
		return nil, err
	}
	fields := bytes.Split(out, []byte{0})
	var tags []Tag
	for ; len(fields) > 7; fields = fields[7:] {
		text := func(i int) string { return string(fields[i]) }
		t := Tag{Name: strings.TrimPrefix(strings.TrimPrefix(text(0), "\n"), "refs/tags/"), Object: text(2), Commit: text(2)}
		kind := text(1)
		if t.Annotated = kind == "tag"; t.Annotated {
			kind, t.Commit = text(3), text(4)
			t.Message = text(6)
		}
		if kind == "tag" { // of a tag of a tag
			if t.Commit, err = r.Commit(ctx, t.Object); err != nil {
				return nil, err
			}
		}
		if seconds, err := strconv.ParseInt(text(5), 10, 64); err == nil {
			t.Created = time.Unix(seconds, 0)
		}
		if kind == "commit" || kind == "tag" && t.Commit != "" {
			tags = append(tags, t)
		}
	}
	return tags, nil
}

// CheckName tells whether git takes a tag of that name. The error gives git's word for what is wrong.
func (r *Repository) CheckName(ctx context.Context, name string) error {
	_, err := r.run(ctx, command{}, "check-ref-format", "refs/tags/"+name)
	var failed *Error
	if errors.As(err, &failed) || strings.HasPrefix(name, "-") {
		return fmt.Errorf("tag %q: not a name that git takes", name)
	}
	return err
}

// Tag makes an annotated tag with the message on the commit. A tag that exists is never moved: it is an error.
func (r *Repository) Tag(ctx context.Context, name, commit string, message string) (object string, err error) {
	if _, err := r.run(ctx, command{stdin: message}, "tag", "--annotate", "--cleanup=verbatim", "--file=-", "--", name,
		commit); err != nil {
		return "", err
	}
	return r.line(ctx, "rev-parse", "--verify", "--quiet", "refs/tags/"+name)
}
