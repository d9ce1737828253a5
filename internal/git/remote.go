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

// maxLine limits a line of git's messages or of a commit, in bytes.
const maxLine = 1000

// remoteLimit is the time limit for a remote's answer.
const remoteLimit = 15 * time.Second

// A Remote is a remote repository to push tags to.
type Remote struct {
	Name string   `json:"name"`
	URLs []string `json:"urls"` // push URLs, without credentials
}

// Remotes returns the names of all remotes, sorted.
func (r *Repository) Remotes(ctx context.Context) ([]string, error) {
	out, err := r.line(ctx, "remote")
	return strings.Fields(out), err
}

// Remote returns the remote called name, or for "" the branch's remote, else origin, else the only remote. It returns
// nil if there is no such remote.
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

// batch returns environment variables that keep ssh from prompting, or nil if the user has configured an ssh command.
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

// Refs maps the branches and tags of a remote to their objects.
type Refs map[string]string

// ask runs a git command that contacts the remote, limited to remoteLimit.
func (r *Repository) ask(ctx context.Context, remote string, args ...string) ([]byte, error) {
	limit, cancel := context.WithTimeout(ctx, remoteLimit)
	defer cancel()
	out, err := r.run(limit, command{env: r.batch(ctx)}, args...)
	if err != nil && limit.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%s: %w in %v", remote, ErrOffline, remoteLimit)
	}
	return out, err
}

// List returns the refs of the remote. The error wraps ErrOffline if the remote is unreachable.
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

// Tag returns the object of the remote's tag, or "".
func (refs Refs) Tag(name string) string { return refs["refs/tags/"+name] }

// Names returns the names of the remote's tags, sorted.
func (refs Refs) Names() (names []string) {
	for ref := range refs {
		if name, ok := strings.CutPrefix(ref, "refs/tags/"); ok && !strings.HasSuffix(name, "^{}") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Lacking returns the commits up to commit that are missing on a remote with refs, newest first, as short hash and
// subject. n counts all of them, of which at most limit are returned.
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

// Preview asks the remote whether it would accept object, a commit or a tag object, as a new tag. It sends nothing and
// runs no local hook. The error wraps ErrOffline if the remote does not answer in time.
func (r *Repository) Preview(ctx context.Context, remote, object, tag string) error {
	_, err := r.ask(ctx, remote, "push", "--dry-run", "--porcelain", "--no-verify", "--no-follow-tags",
		"--recurse-submodules=no", "--", remote, object+":refs/tags/"+tag)
	return refused(err)
}

// Push pushes the tag and the commits it needs, nothing else. It never overwrites a remote tag.
func (r *Repository) Push(ctx context.Context, remote, tag string) error {
	out, err := r.run(ctx, command{env: r.batch(ctx)}, "push", "--porcelain", "--no-follow-tags",
		"--recurse-submodules=no", "--", remote, "refs/tags/"+tag)
	if failed, ok := errors.AsType[*Error](err); ok {
		for line := range strings.Lines(string(out)) {
			// Format: "!", the refs, and the reason in brackets, which stderr does not always repeat.
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

// refused removes generic lines from git's error message.
func refused(err error) error {
	failed, ok := errors.AsType[*Error](err)
	if !ok {
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

// A Tag is a local tag of a commit.
type Tag struct {
	Name      string    `json:"name"`
	Object    string    `json:"object"` // hash of the tag object; the commit's hash for a lightweight tag
	Commit    string    `json:"commit"`
	Created   time.Time `json:"created"`
	Annotated bool      `json:"annotated"`
	Message   string    `json:"-"` // "" for a lightweight tag
}

// Tags returns the tags of commits, newest first: the contest uses a definition's newest tag. For tags of the same
// second, the higher number in the name is newer.
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
		if kind == "tag" { // a tag of a tag
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

// CheckName returns an error if name is not a valid git tag name.
func (r *Repository) CheckName(ctx context.Context, name string) error {
	_, err := r.run(ctx, command{}, "check-ref-format", "refs/tags/"+name)
	if _, failed := errors.AsType[*Error](err); failed || strings.HasPrefix(name, "-") {
		return fmt.Errorf("tag %q: not a valid git name", name)
	}
	return err
}

// Tag creates an annotated tag of commit. It returns an error if the tag exists; it never moves one.
func (r *Repository) Tag(ctx context.Context, name, commit string, message string) (object string, err error) {
	if _, err := r.run(ctx, command{stdin: message}, "tag", "--annotate", "--cleanup=verbatim", "--file=-", "--", name,
		commit); err != nil {
		return "", err
	}
	return r.line(ctx, "rev-parse", "--verify", "--quiet", "refs/tags/"+name)
}

// A sign maps substrings of a git message, separated by "|", to a hint.
type sign struct{ words, hint string }

var signs = []sign{
	{"tell me who you are|empty ident", "git config --global user.name NAME && git config --global user.email ADDRESS"},
	{"dubious ownership", "another user owns the folder: git config --global --add safe.directory FOLDER"},
	{"gpg", "tag.gpgSign is set; for unsigned tags: git config tag.gpgSign false"},
}

// pushSigns are the signs for a failed push of an existing tag. %s in a hint is the command that retries the push.
var pushSigns = []sign{
	{"already exists", "tags are never overwritten: git fetch --tags, then set another name: tag in [submit] of " +
		"config.toml"},
	{"could not read username|authentication failed|terminal prompts disabled|permission denied|publickey|403|401",
		"the tag exists locally; log in to the remote, then: %s"},
	{"hook declined|pre-receive|pre-push", "the tag exists locally, but a hook rejected it; after fixing that: %s"},
	{"could not resolve|could not connect|timed out|unable to access|connection",
		"the tag exists locally; when the network is back: %s"},
	{"", "the tag exists locally; to try again: %s"},
}

// pushHint returns the hint for a failed push of tag.
func pushHint(err error, remote, tag string) string {
	again := fmt.Sprintf("git push %s refs/tags/%s", remote, tag)
	return strings.ReplaceAll(read(pushSigns, err.Error()), "%s", again)
}

func read(signs []sign, text string) string {
	text = strings.ToLower(text)
	for _, s := range signs {
		for word := range strings.SplitSeq(s.words, "|") {
			if strings.Contains(text, word) {
				return s.hint
			}
		}
	}
	return ""
}
