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

// A Tag is a tag of the repository, and what its message says.
type Tag struct {
	git.Tag
	Note Note `json:"note"` // empty where it is not a tag of fisub's
}

// tags lists those of the repository, in the order of git.Repository.Tags.
func tags(ctx context.Context, r *git.Repository) (list []Tag, err error) {
	all, err := r.Tags(ctx)
	for _, t := range all {
		list = append(list, Tag{t, parseNote(t.Message)})
	}
	return list, err
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

// A line is one of a message.
type line struct {
	key   string
	value *string
}

// lines are those of a message in their order.
func (n *Note) lines() []line {
	return []line{{"Definition", &n.Definition}, {"Name", &n.Name}, {"Author", &n.Author},
		{"Content-Hash", &n.ContentHash}, {"Run", &n.Run}, {"Result", &n.Result}, {"Device", &n.Device}, {"Fisub", &n.Fisub}}
}

// maxNote bounds a line of a tag's message, in bytes.
const maxNote = 1000

// Message is the text of the tag.
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

// parseNote reads a message; the first line of each key counts.
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

// The parts of a pattern for a tag's name that stand for something.
const (
	NumberPart     = "{n}"          // the first number that is free, from 1
	DefinitionPart = "{definition}" // the definition's name
)

// Pattern is that of the tags' names where the config has none.
const Pattern = "submission-" + DefinitionPart + "-" + NumberPart

// Expand gives the name that a pattern stands for, when the tags of the names taken are there: the number is one more
// than the highest that a name of the pattern has.
func Expand(pattern, definition string, taken []string) string {
	n := 1
	for _, name := range taken {
		if number, ok := numberIn(pattern, definition, name); ok {
			n = max(n, number+1)
		}
	}
	return strings.Replace(strings.ReplaceAll(pattern, DefinitionPart, definition), NumberPart, strconv.Itoa(n), 1)
}

// numberIn tells whether a name could be one of the pattern's, and its number, 0 where the pattern has none.
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
