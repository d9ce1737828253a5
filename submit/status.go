package submit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"fisub/collector"
	"fisub/internal/git"
	"fisub/internal/plain"
)

// What the State of a Line may be.
const (
	Same    = "ok"      // the tag packs to the hash in its message
	Differs = "differs" // it does not
	Broken  = "broken"  // it does not pack, and its message promises nothing
	Carried = "carried" // it packs, and the tag was made for another definition
	Unnoted = "no hash" // it packs, and its message has no hash: it was not made by fisub
)

// A Status is what the tags of a repository hold.
type Status struct {
	Remote  *git.Remote `json:"remote,omitempty"`
	Offline string      `json:"offline,omitempty"` // why the remote gave no answer
	Lines   []Line      `json:"tags"`              // by definition, the newest tag first
	Here    []Here      `json:"here"`              // the submissions of the working tree
	More    int         `json:"more"`              // older tags that were not looked at
}

// A Line is one submission in one tag.
type Line struct {
	Definition string `json:"definition"`
	Path       string `json:"path"` // of its config.toml, or collector.Packed; "" where it is not there
	Tag        Tag    `json:"tag"`
	Packs      string `json:"packs_to,omitempty"` // content hash of a clean checkout
	Remote     string `json:"remote"`             // "yes", "no", "differs", "offline", "none" where there is no remote
	Newest     bool   `json:"newest"`             // no newer tag has the definition
	Taken      bool   `json:"taken"`              // the contest takes it: the newest of the definition that the remote has
	State      string `json:"state"`
	Why        string `json:"why,omitempty"`
}

// Here is a submission of the working tree.
type Here struct {
	Path       string `json:"path"`
	Definition string `json:"definition,omitempty"`
	Hash       string `json:"content_hash,omitempty"`
	Fault      string `json:"fault,omitempty"`  // why it does not pack
	Newest     string `json:"newest,omitempty"` // the newest tag of its definition
	Same       bool   `json:"same"`             // that tag holds what is here
}

// Text is a sentence about it.
func (h Here) Text() string {
	switch {
	case h.Fault != "":
		return fmt.Sprintf("%s does not pack: %s", h.Path, h.Fault)
	case h.Newest == "":
		return fmt.Sprintf("%s, %s: %s is in no tag", h.Path, h.Definition, plain.Short(h.Hash))
	case h.Same:
		return fmt.Sprintf("%s, %s: %s, as in the newest tag, %s", h.Path, h.Definition, plain.Short(h.Hash), h.Newest)
	}
	return fmt.Sprintf("%s, %s: %s differs from the newest tag, %s", h.Path, h.Definition, plain.Short(h.Hash), h.Newest)
}

// NewStatus looks at the newest limit tags of the repository that holds the folder dir; remote is as in NewSurvey.
func NewStatus(ctx context.Context, dir, remote string, limit int) (*Status, error) {
	v, err := look(ctx, dir, remote)
	if err != nil {
		return nil, err
	}
	tags := v.Tags[:min(len(v.Tags), limit)]
	st := &Status{Remote: v.Remote, Lines: []Line{}, Here: []Here{}, More: len(v.Tags) - len(tags)}
	if v.Offline != nil {
		st.Offline = v.Offline.Error()
	}
	packed := map[string][]collector.Submission{}
	newest, taken := map[string]bool{}, map[string]bool{} // definitions that have had such a tag
	for _, t := range tags {
		if _, ok := packed[t.Commit]; !ok {
			found, err := collector.Commit(ctx, v.Repo, t.Commit)
			if err != nil {
				return nil, fmt.Errorf("tag %s: %w", t.Name, err)
			}
			packed[t.Commit] = found.Taken()
		}
		where := v.where(t)
		for _, l := range lines(t, packed[t.Commit]) {
			l.Remote = where
			own := func(o Tag) bool { return o.Commit == t.Commit && o.Note.Definition == l.Definition }
			// Of two tags of one commit the one that was made for it is named.
			if l.Packs != "" && (l.State != Carried || !slices.ContainsFunc(tags, own)) {
				l.Newest = !newest[l.Definition]
				l.Taken = where == "yes" && !taken[l.Definition]
				newest[l.Definition] = true
				taken[l.Definition] = taken[l.Definition] || l.Taken
			}
			st.Lines = append(st.Lines, l)
		}
	}
	for _, c := range v.Here.Taken() {
		if c.Err != nil {
			st.Here = append(st.Here, Here{Path: c.Path, Fault: plain.First(c.Err.Error())})
			continue
		}
		h := Here{Path: c.Path, Definition: c.Solution.Definition, Hash: c.Solution.Hash()}
		packs := func(l Line) bool { return l.Definition == h.Definition && l.Packs != "" }
		if i := slices.IndexFunc(st.Lines, packs); i >= 0 {
			newest := st.Lines[i].Tag
			h.Newest = newest.Name
			h.Same = slices.ContainsFunc(packed[newest.Commit], func(in collector.Submission) bool {
				return in.Err == nil && len(collector.Differences(in.Solution, c.Solution)) == 0
			})
		}
		st.Here = append(st.Here, h)
	}
	slices.SortStableFunc(st.Lines, func(a, b Line) int {
		if (a.Definition == "") != (b.Definition == "") { // what has none stands behind all others
			return strings.Compare(b.Definition, a.Definition)
		}
		return strings.Compare(a.Definition, b.Definition)
	})
	return st, nil
}

// where tells whether the remote has a tag, as in Line.Remote.
func (v *Survey) where(t Tag) string {
	switch object := v.Refs.Tag(t.Name); {
	case v.Offline != nil:
		return "offline"
	case v.Remote == nil:
		return "none"
	case object == "":
		return "no"
	case object != t.Object:
		return "differs"
	}
	return "yes"
}

// lines are those of the submissions that a tag holds. What a tag of another program holds beside them, such as a
// config.toml that does not pack, is left out where it holds none at all.
func lines(t Tag, all []collector.Submission) (of []Line) {
	promised := t.Note.ContentHash != ""
	for _, c := range all {
		l := Line{Path: c.Path, Tag: t}
		if c.Err != nil {
			l.State, l.Why = Broken, plain.First(c.Err.Error())
			of = append(of, l)
			continue
		}
		l.Definition, l.Packs, l.State = c.Solution.Definition, c.Solution.Hash(), Unnoted
		if promised && l.Definition == t.Note.Definition {
			promised = false
			if l.State, l.Why = Same, noted(t.Note, c); l.Why != "" {
				l.State = Differs
			}
		} else if t.Note.Definition != "" {
			l.State = Carried
		}
		of = append(of, l)
	}
	if promised {
		of = append(of, Line{Definition: t.Note.Definition, Tag: t, State: Differs,
			Why: "nothing in it packs to that definition"})
	}
	return of
}

// noted compares a submission with the note of its tag.
func noted(n Note, c collector.Submission) string {
	switch {
	case n.ContentHash != c.Solution.Hash():
		return "other content"
	case n.Name != plain.Brief(c.Solution.Name, maxNote):
		return "another name"
	case n.Author != plain.Brief(c.Solution.Author, maxNote):
		return "another author"
	}
	return ""
}
