package submit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"fisub/internal/plain"
)

// A Tag is a tag of the repository that leads to a commit.
type Tag struct {
	Name      string    `json:"name"`
	Object    string    `json:"object"` // hash of the tag itself; of a lightweight one, which has none, the commit's
	Commit    string    `json:"commit"`
	Created   time.Time `json:"created"`
	Annotated bool      `json:"annotated"`
	Note      Note      `json:"note"` // empty where it is not a tag of fisub's
}

// A Note is what the message of a tag says about the submission that it was made for.
type Note struct {
	Definition  string `json:"definition,omitempty"`
	Name        string `json:"name,omitempty"`
	Author      string `json:"author,omitempty"`
	ContentHash string `json:"content_hash,omitempty"`
	Run         string `json:"run,omitempty"`    // id of the run that passed, "none" where the tag was made untested
	Result      string `json:"result,omitempty"` // its headline
	Device      string `json:"device,omitempty"`
	Fisub       string `json:"fisub,omitempty"` // version of the program
}

// fields are the lines of a message in their order.
func (n *Note) fields() []struct {
	key   string
	value *string
} {
	return []struct {
		key   string
		value *string
	}{{"Definition", &n.Definition}, {"Name", &n.Name}, {"Author", &n.Author}, {"Content-Hash", &n.ContentHash}, {"Run", &n.Run},
		{"Result", &n.Result}, {"Device", &n.Device}, {"Fisub", &n.Fisub}}
}

// maxNote bounds a line of a tag's message, in bytes.
const maxNote = 1000

// Message is the text of the tag.
func (n Note) Message() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Submission of %s\n\n", plain.Brief(n.Definition, maxNote))
	for _, f := range n.fields() {
		if *f.value != "" {
			fmt.Fprintf(&b, "%s: %s\n", f.key, plain.Brief(*f.value, maxNote))
		}
	}
	return b.String()
}

// parseNote reads a message; the first line of each key counts.
func parseNote(message string) (n Note) {
	for line := range strings.Lines(message) {
		key, value, ok := strings.Cut(line, ": ")
		if !ok {
			continue
		}
		for _, f := range n.fields() {
			if f.key == key && *f.value == "" {
				*f.value = plain.Brief(value, maxNote)
			}
		}
	}
	if n.Definition == "" || n.ContentHash == "" {
		return Note{}
	}
	return n
}

// Tags lists the tags that lead to commits, the newest first: the contest takes the newest of a definition. Of two of the same
// second the one with the higher number in its name is the newer.
func (r *Repository) Tags(ctx context.Context) ([]Tag, error) {
	out, err := r.run(ctx, "", nil, "for-each-ref", "--format=%(refname)%00%(objecttype)%00%(objectname)%00%(*objecttype)%00%(*objectname)%00%(creatordate:unix)%00%(contents)%00",
		"refs/tags")
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
			t.Note = parseNote(text(6))
		}
		if kind == "tag" { // of a tag of a tag
			if t.Commit, err = r.line(ctx, "rev-parse", "--verify", "--quiet", "--end-of-options", t.Object+"^{commit}"); err == nil {
				kind = "commit"
			} else if ctx.Err() != nil {
				return nil, ctx.Err()
			}
		}
		if seconds, err := strconv.ParseInt(text(5), 10, 64); err == nil {
			t.Created = time.Unix(seconds, 0)
		}
		if kind == "commit" {
			tags = append(tags, t)
		}
	}
	slices.SortStableFunc(tags, func(a, b Tag) int {
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return natural(b.Name, a.Name)
	})
	return tags, nil
}

// natural compares names whose numbers count as numbers: a-9 before a-10.
func natural(a, b string) int {
	stemA, numberA := numbered(a)
	stemB, numberB := numbered(b)
	if stemA != stemB || numberA == numberB {
		return strings.Compare(a, b)
	}
	return numberA - numberB
}

// numbered splits the number off a name's end; it is -1 where there is none.
func numbered(name string) (stem string, number int) {
	stem = strings.TrimRight(name, "0123456789")
	if n, err := strconv.Atoi(name[len(stem):]); err == nil && len(name)-len(stem) <= 9 {
		return stem, n
	}
	return name, -1
}

// The parts of a pattern for a tag's name that stand for something.
const (
	NumberPart     = "{n}"          // the first number that is free, from 1
	DefinitionPart = "{definition}" // the definition's name
)

// Pattern is that of the tags' names where the config has none.
const Pattern = "submission-" + DefinitionPart + "-" + NumberPart

// Expand gives the name that a pattern stands for, when the tags of the names taken are there: the number is one more than the
// highest that a name of the pattern has.
func Expand(pattern, definition string, taken []string) string {
	name := strings.ReplaceAll(pattern, DefinitionPart, definition)
	before, after, counted := strings.Cut(name, NumberPart)
	if !counted {
		return name
	}
	n := 1
	for _, t := range taken {
		if number, ok := numberIn(t, before, after); ok {
			n = max(n, number+1)
		}
	}
	return before + strconv.Itoa(n) + after
}

func numberIn(name, before, after string) (int, bool) {
	middle, ok := strings.CutPrefix(name, before)
	if !ok {
		return 0, false
	}
	if middle, ok = strings.CutSuffix(middle, after); !ok || len(middle) > 9 || middle == "" || strings.Trim(middle, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(middle)
	return n, err == nil
}

// matches tells whether a name could be one of the pattern's.
func matches(pattern, definition, name string) bool {
	whole := strings.ReplaceAll(pattern, DefinitionPart, definition)
	before, after, counted := strings.Cut(whole, NumberPart)
	if !counted {
		return name == whole
	}
	_, ok := numberIn(name, before, after)
	return ok
}

// CheckName tells whether git takes a tag of that name. The error gives git's word for what is wrong.
func (r *Repository) CheckName(ctx context.Context, name string) error {
	_, err := r.run(ctx, "", nil, "check-ref-format", "refs/tags/"+name)
	var failed *GitError
	if errors.As(err, &failed) || strings.HasPrefix(name, "-") {
		return fmt.Errorf("tag %q: not a name that git takes", name)
	}
	return err
}

// Tag makes an annotated tag on the commit. A tag that exists is never moved: it is an error.
func (r *Repository) Tag(ctx context.Context, name, commit string, n Note) (object string, err error) {
	if _, err := r.run(ctx, n.Message(), nil, "tag", "--annotate", "--cleanup=verbatim", "--file=-", "--", name, commit); err != nil {
		return "", err
	}
	return r.line(ctx, "rev-parse", "--verify", "--quiet", "refs/tags/"+name)
}
