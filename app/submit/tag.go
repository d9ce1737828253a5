package submit

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"fisub/internal/git"
	"fisub/internal/plain"
)

// A Tag is a tag of the repository with its parsed message.
type Tag struct {
	git.Tag
	Note Note `json:"note"` // empty if fisub did not create the tag
}

// tags returns the repository's tags in the order of git.Repository.Tags.
func tags(ctx context.Context, r *git.Repository) (list []Tag, err error) {
	all, err := r.Tags(ctx)
	for _, t := range all {
		list = append(list, Tag{t, parseNote(t.Message)})
	}
	return list, err
}

// A Note holds the facts about a submission in its tag's message.
type Note struct {
	Definition  string `json:"definition,omitempty"`
	Name        string `json:"name,omitempty"`
	Author      string `json:"author,omitempty"`
	ContentHash string `json:"content_hash,omitempty"`
	Run         string `json:"run,omitempty"`    // id of the run that passed, "none" for an untested tag
	Result      string `json:"result,omitempty"` // the run's headline
	Device      string `json:"device,omitempty"`
	Fisub       string `json:"fisub,omitempty"` // fisub's version
}

// A line is one line of a message.
type line struct {
	key   string
	value *string
}

func (n *Note) lines() []line {
	return []line{{"Definition", &n.Definition}, {"Name", &n.Name}, {"Author", &n.Author},
		{"Content-Hash", &n.ContentHash}, {"Run", &n.Run}, {"Result", &n.Result}, {"Device", &n.Device}, {"Fisub", &n.Fisub}}
}

// maxNote is the maximum length of a line of the message in bytes.
const maxNote = 1000

// Message returns the tag's message.
func (n Note) Message() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Submission of %s\n\n", plain.Brief(n.Definition, maxNote))
	for _, f := range n.lines() {
		if *f.value != "" {
			fmt.Fprintf(&b, "%s: %s\n", f.key, plain.Brief(*f.value, maxNote))
		}
	}
	return b.String()
}

// parseNote parses a message; the first line of each key counts. It returns an empty Note if required lines are
// missing.
func parseNote(message string) (n Note) {
	for line := range strings.Lines(message) {
		key, value, ok := strings.Cut(line, ": ")
		if !ok {
			continue
		}
		for _, f := range n.lines() {
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

// Placeholders in a pattern for tag names.
const (
	NumberPart     = "{n}"          // the first free number, from 1
	DefinitionPart = "{definition}" // the definition's name
)

// Pattern is the default pattern for tag names.
const Pattern = "submission-" + DefinitionPart + "-" + NumberPart

// Expand returns a pattern's tag name, with a number one higher than the highest among the names taken that match it.
func Expand(pattern, definition string, taken []string) string {
	n := 1
	for _, name := range taken {
		if number, ok := numberIn(pattern, definition, name); ok {
			n = max(n, number+1)
		}
	}
	return strings.Replace(strings.ReplaceAll(pattern, DefinitionPart, definition), NumberPart, strconv.Itoa(n), 1)
}

// numberIn reports whether name matches the pattern, and returns its number, or 0 for a pattern without one.
func numberIn(pattern, definition, name string) (n int, ok bool) {
	before, after, counted := strings.Cut(strings.ReplaceAll(pattern, DefinitionPart, definition), NumberPart)
	if !counted {
		return 0, name == before
	}
	m := regexp.MustCompile("^" + regexp.QuoteMeta(before) + "([0-9]{1,9})" + regexp.QuoteMeta(after) + "$")
	if found := m.FindStringSubmatch(name); found != nil {
		n, err := strconv.Atoi(found[1])
		return n, err == nil
	}
	return 0, false
}
