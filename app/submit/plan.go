// Package submit turns a commit into a submission to the contest: a git tag. It compares the working tree with the
// contest collector's view of a clean checkout, lists reasons for and against a tag, creates it and pushes it. It
// never commits, moves a tag or forces a push. Formats, packing and runs are left to trace, pack and runs.
package submit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"fisub/internal/config"
	"fisub/internal/git"
	"fisub/internal/plain"
	"fisub/internal/trace"
	"fisub/pack"
)

// A StepState is the result of a step.
type StepState string

const (
	OK      StepState = "ok"
	Warning StepState = "warning" // the result should be read with it
	Todo    StepState = "to do"   // the user has something to do before the tag can be created
	Fault   StepState = "fault"   // the contest would get another submission than the tested one, or none
)

// A Step is the result of one check.
type Step struct {
	Name    string    `json:"step"` // "check", "tested", "edge", "commit", "checkout", "tag", "remote"
	State   StepState `json:"state"`
	Text    string    `json:"text"`
	Hint    string    `json:"hint,omitempty"`
	Command string    `json:"command,omitempty"` // to run next in the project's folder; "" if several could be meant
}

// A Survey holds the facts that all submissions of a repository share.
type Survey struct {
	Top       string          // root of the working tree; without git NewSurvey's dir
	Repo      *git.Repository // nil if Missing is set
	Missing   error           // git.ErrMissing or git.ErrNoRepository
	Head      git.Head
	Here      *pack.Collection // in the working tree, or in the folder without git
	Committed *pack.Collection // in a clean checkout of HEAD; nil if nothing is committed
	Changes   []git.Change     // from HEAD, in files that the collector reads
	Hidden    []git.Hidden     // files that the collector reads whose changes git does not report
	Tags      []Tag
	Remote    *git.Remote // nil if the repository has no remote
	Refs      git.Refs    // nil if the remote was not asked or did not answer
	Offline   error       // why it did not answer; wraps git.ErrOffline
}

// NewSurvey examines the repository that contains the folder dir. remote is a remote's name; "" means the branch's,
// origin, or the only one. Without a repository, the fields that need one are empty.
func NewSurvey(ctx context.Context, dir, remote string) (*Survey, error) {
	repo, err := git.Open(ctx, dir)
	if git.IsMissing(err) {
		v := &Survey{Top: dir, Missing: err}
		v.Here, err = pack.Collect(dir)
		return v, err
	}
	if err != nil {
		return nil, err
	}
	v := &Survey{Repo: repo, Top: repo.Top}
	if v.Head, err = repo.Head(ctx); err != nil {
		return nil, err
	}
	if v.Here, err = pack.Collect(v.Top); err != nil {
		return nil, err
	}
	if v.Tags, err = tags(ctx, repo); err != nil {
		return nil, err
	}
	if v.Remote, err = repo.Remote(ctx, remote, v.Head.Branch); err != nil {
		return nil, err
	}
	if v.Remote != nil {
		v.Refs, err = repo.List(ctx, v.Remote.Name)
		if errors.Is(err, git.ErrOffline) {
			v.Offline, err = err, nil
		}
	}
	if err != nil || v.Head.Commit == "" {
		return v, err
	}
	if v.Committed, err = pack.CollectCommit(ctx, v.Repo, v.Head.Commit); err != nil {
		return nil, err
	}
	return v, v.changes(ctx)
}

// changes sets Changes and Hidden, for the files that the collector reads here or in the commit.
func (v *Survey) changes(ctx context.Context) error {
	reads, paths := map[string]bool{pack.Packed: true}, map[string]bool{pack.Packed: true}
	for _, c := range slices.Concat(v.Here.Taken(), v.Committed.Taken()) {
		for _, file := range c.Reads {
			reads[file] = true
		}
		paths[c.Path] = true
		if c.Folder != "" {
			paths[c.Folder] = true
		}
	}
	read := slices.Sorted(maps.Keys(paths))
	changes, err := v.Repo.Changes(ctx, read...)
	if err != nil {
		return err
	}
	v.Changes = slices.DeleteFunc(changes, func(c git.Change) bool { return !reads[c.Path] })
	hidden, err := v.Repo.Hidden(ctx, read...)
	v.Hidden = slices.DeleteFunc(hidden, func(h git.Hidden) bool { return !reads[h.Path] })
	return err
}

// Options select a submission and the requirements for its tag.
type Options struct {
	Config    string          // path of its config.toml
	Solution  *trace.Solution // as packed from the working tree
	Pattern   string          // for the tag's name; "" is Pattern
	Proof     *Proof
	Untested  bool   // require no passed run, but refuse failed ones
	Findings  bool   // accept findings of runs
	Checked   []Step // of the pre-flight checks
	Version   string // of fisub
	WillPush  bool
	AskedName string // the remote named by the user, or ""
}

// A TagPlan lists the steps to a tag, and their results.
type TagPlan struct {
	Config     string `json:"config"` // as in Options
	Definition string `json:"definition"`
	Name       string `json:"name"`
	Author     string `json:"author"`
	Hash       string `json:"content_hash"`
	Steps      []Step `json:"steps"`
	Commit     string `json:"commit,omitempty"`
	Tag        string `json:"tag,omitempty"`    // name; "" if it cannot be determined
	Object     string `json:"object,omitempty"` // of the tag on this commit for this content, once it exists
	Note       Note   `json:"note"`
	Pushed     bool   `json:"pushed"` // the remote has the tag
}

// Refused reports whether the tag cannot be created yet, and whether a fault is the reason.
func (p *TagPlan) Refused() (refused, fault bool) {
	for _, s := range p.Steps {
		refused = refused || s.State == Todo || s.State == Fault
		fault = fault || s.State == Fault
	}
	return refused, fault
}

// NeedsEdge reports whether only a run of set edge, and maybe steps of git, are missing.
func (p *TagPlan) NeedsEdge() bool {
	needed := false
	for _, s := range p.Steps {
		if s.State == Fault || s.State == Todo && s.Name == "tested" {
			return false
		}
		needed = needed || s.State == Todo && s.Name == "edge"
	}
	return needed
}

func (p *TagPlan) add(name string, state StepState, hint, format string, args ...any) {
	p.Steps = append(p.Steps, Step{Name: name, State: state, Text: fmt.Sprintf(format, args...), Hint: hint})
}

// next sets the command of the last step.
func (p *TagPlan) next(command string) { p.Steps[len(p.Steps)-1].Command = command }

// Plan lists the steps to a submission's tag.
func (v *Survey) Plan(ctx context.Context, o Options) (*TagPlan, error) {
	sol := o.Solution
	n := Note{Definition: sol.Definition, Name: sol.Name, Author: sol.Author, ContentHash: sol.Hash(), Fisub: o.Version}
	p := &TagPlan{Config: o.Config, Definition: n.Definition, Name: n.Name, Author: n.Author, Hash: n.ContentHash, Note: n,
		Commit: v.Head.Commit}
	o.Proof.note(&p.Note)
	p.Steps = append(p.Steps, o.Checked...)
	p.tested(o.Proof, o.Untested, o.Findings)
	if v.Missing != nil {
		hint := "git init, then git add and git commit the submission"
		if errors.Is(v.Missing, git.ErrMissing) {
			hint = "install git: a submission is a tag of a git repository"
		}
		p.add("commit", Todo, hint, "%v", v.Missing)
		if errors.Is(v.Missing, git.ErrNoRepository) {
			p.next("git init")
		}
		return p, nil
	}
	own, ok := v.Repo.Relative(o.Config)
	if !ok {
		return nil, fmt.Errorf("%s: not below %s", o.Config, v.Top)
	}
	v.collected(p, own, sol)
	clean := v.commit(p, own)
	if v.Head.Commit == "" {
		return p, nil
	}
	if clean { // otherwise the checkout differs because of the changes
		v.checkout(p, own, sol)
	}
	if err := v.tag(ctx, p, o); err != nil {
		return nil, err
	}
	return p, v.remote(ctx, p, o)
}

const edgeCommand = "fisub local --device emu --set edge"

func (p *TagPlan) tested(proof *Proof, untested, findings bool) {
	const hint = "run fisub local --set contest on a machine with a GPU, " +
		"or fisub remote --set contest; --untested skips this"
	seen := "no run of this content"
	if proof.Seen != nil {
		seen = fmt.Sprintf("run %s: %s; %s", proof.Seen.ID, p.Note.Result, p.Note.Device)
	}
	switch {
	case proof.Broken != "":
		p.add("tested", Fault, "a single failed workload makes the score 0: fix it (fisub runs show has details). If the "+
			"machine was at fault, remove the run: fisub runs rm ID", "%s", proof.Broken)
		p.next("fisub runs show " + proof.brokenRun)
	case proof.Run != nil:
		p.add("tested", OK, "", "%s", seen)
	case untested:
		p.add("tested", Warning, "", "not required to pass the contest's set on a GPU; the tag will record: %s", seen)
	case proof.Failed != "":
		p.add("tested", Fault, hint, "%s", proof.Failed)
		p.next(proof.run())
	case proof.Changed != "":
		p.add("tested", Todo, hint, "changed since run %s, which passed: content hash %s then, %s now",
			proof.Changed, plain.Short(proof.Old), plain.Short(p.Note.ContentHash))
		p.next(proof.run())
	default:
		p.add("tested", Todo, hint, "no run of this content (%s) passed", plain.Short(p.Note.ContentHash))
		p.next(proof.run())
	}
	switch {
	case proof.Found == "":
	case findings:
		p.add("tested", Warning, "", "%s", proof.Found)
	default:
		p.add("tested", Fault, "fisub runs show lists them; --accept-findings skips this", "%s", proof.Found)
		p.next("fisub runs show " + proof.foundRun)
	}
	switch {
	case proof.EdgeLack == "" && proof.Edge != "":
		p.add("edge", OK, "", "run %s: all of set edge passed", proof.Edge)
	case proof.EdgeLack == "":
	case untested:
		p.add("edge", Warning, "", "%s", proof.EdgeLack)
	case proof.Edge != "":
		p.add("edge", Fault, "fisub local --device emu --set edge runs it again; --untested skips this", "%s",
			proof.EdgeLack)
		p.next(edgeCommand)
	default:
		p.add("edge", Todo, "fisub submit runs it after the contest's set has passed on a GPU; --untested skips this", "%s",
			proof.EdgeLack)
		p.next(edgeCommand)
	}
	for _, w := range proof.Warnings {
		p.add("tested", Warning, "", "%s", w)
	}
}

// collected checks whether the collector finds the config, or a packed solution instead. The pre-flight checks report
// its other faults, and checkout refuses them.
func (v *Survey) collected(p *TagPlan, own string, sol *trace.Solution) {
	switch c := v.Here.Of(own); {
	case path.Base(own) != config.Name:
		p.add("collector", Fault, "name it "+config.Name, "%s: the contest's collector reads only %s", own, config.Name)
	case c == nil:
		p.add("collector", Fault, "move it up, or make the submission's folder a separate repository",
			"%s: the contest's collector reads only the repository's root and the folders in it", own)
	case c.Path == pack.Packed && c.Err == nil && c.Definition != sol.Definition:
		p.add("collector", Fault, "git rm "+c.Path, "%s, of definition %s, hides %s from the contest's collector",
			c.Path, c.Definition, own)
	}
}

// commitCommand commits all files of the project. .gitignore excludes run folders.
const commitCommand = "git add . && git commit -m submission"

// commit compares HEAD with the working tree, and reports whether they are the same, ignored files aside.
func (v *Survey) commit(p *TagPlan, own string) (same bool) {
	if v.Head.Commit == "" {
		p.add("commit", Todo, "git add "+plain.Word(path.Dir(own))+" && git commit", "no commits yet")
		p.next(commitCommand)
		return false
	}
	head := plain.Short(v.Head.Commit)
	var changed []string
	for _, c := range v.Changes {
		if c.State != "ignored" { // reported by the pre-flight checks and by checkout
			changed = append(changed, fmt.Sprintf("%s (%s)", plain.Line(c.Path), c.State))
		}
	}
	if len(changed) > 0 {
		p.add("commit", Todo, "git add and git commit the files, or git restore them",
			"%s differs from the working tree: %s", head, some(changed))
		p.next(commitCommand)
	} else if v.Head.Branch != "" && len(v.Changes) == 0 {
		p.add("commit", OK, "", "%s on %s contains all files that the collector reads", head, v.Head.Branch)
	}
	if v.Head.Branch == "" {
		p.add("commit", Todo, "git switch BRANCH, or git switch -c NAME for a new one",
			"HEAD is detached: %s is not on a checked-out branch", head)
		p.next("git switch -c submission")
	}
	return len(changed) == 0
}

// checkout compares the collector's result for the commit with the solution.
func (v *Survey) checkout(p *TagPlan, own string, sol *trace.Solution) {
	head := plain.Short(v.Head.Commit)
	c, here := v.Committed.Of(own), v.Here.Of(own)
	if c == nil || here == nil {
		return // reported by collected
	}
	hint := "git check-attr -a FILE lists the attributes that change it; in .gitattributes: " +
		path.Join(path.Dir(own), "solution") + "/** -text -ident -filter -working-tree-encoding"
	switch {
	case len(v.Hidden) > 0:
		hidden := v.Hidden[0]
		hint = fmt.Sprintf("git update-index --no-%s %s, and commit its changes: the flag %s hides them from git",
			hidden.Flag, plain.Word(hidden.Path), hidden.Flag)
	case len(v.Changes) > 0:
		hint = "add an ignored file with git add -f"
	case c.Err != nil:
		hint = "git ls-tree -r HEAD lists the commit's files; " +
			"files of submodules and output of filters are not among them"
	}
	if c.Solution == nil && here.Solution == nil || c.Solution != nil && here.Solution != nil &&
		len(pack.Differences(c.Solution, here.Solution)) == 0 { // then the contest's packer is the reason, not git
		hint = pack.CollectHint + "; if the sources should count, git rm it"
	}
	if c.Err != nil {
		p.add("checkout", Fault, hint, "a clean checkout of %s does not pack: %v", head, c.Err)
		return
	}
	if what := pack.Differences(c.Solution, sol); len(what) > 0 {
		text := strings.Join(what, ", ") + " differ"
		if len(what) == 1 {
			text += "s"
		}
		if names := files(c.Solution, sol); len(names) > 0 {
			text += ", in " + some(names)
		}
		p.add("checkout", Fault, hint, "a clean checkout of %s packs to %s, the working tree to %s: %s",
			head, plain.Short(c.Solution.Hash()), plain.Short(sol.Hash()), text)
	} else {
		p.add("checkout", OK, "", "a clean checkout of %s packs to the same hash, %s", head, c.Solution.Hash())
	}
	of := []string{c.Path}
	for _, other := range v.Committed.Taken() {
		switch {
		case other.Path == c.Path:
		case other.Err != nil:
			p.add("checkout", Warning, "git rm it if it is not one",
				"the collector also collects %s, which cannot be packed: %s", other.Path, plain.First(other.Err.Error()))
		case other.Definition == sol.Definition:
			of = append(of, other.Path)
		default:
			p.add("checkout", Warning, "", "the tag also contains %s: %s, %s", other.Path, other.Definition,
				plain.Short(other.Solution.Hash()))
		}
	}
	if len(of) > 1 {
		slices.Sort(of)
		p.add("checkout", Fault, "keep only one that the collector finds",
			"%d submissions of %s: %s; it is undefined which one counts", len(of), sol.Definition, some(of))
	}
}

// files returns the names of the sources that differ.
func files(a, b *trace.Solution) (names []string) {
	for _, f := range slices.Concat(a.Sources, b.Sources) {
		if name := plain.Line(f.Path); !slices.Contains(a.Sources, f) || !slices.Contains(b.Sources, f) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// tag chooses the tag's name, or finds the existing tag.
func (v *Survey) tag(ctx context.Context, p *TagPlan, o Options) error {
	pattern := cmp.Or(o.Pattern, Pattern)
	definition := o.Solution.Definition
	// The newest tag of this commit and content is reused, unless another commit has a newer one.
	for _, t := range v.Tags {
		if t.Commit != v.Head.Commit {
			break
		}
		_, own := numberIn(pattern, definition, t.Name)
		if n := t.Note; own && n.Definition == definition && n.ContentHash == p.Note.ContentHash {
			p.Tag, p.Object, p.Note = t.Name, t.Object, n
			p.add("tag", OK, "", "%s exists already, on %s", t.Name, plain.Short(t.Commit))
			return nil
		}
	}
	if len(v.Tags) > 0 && v.Tags[0].Created.After(time.Now().Add(time.Minute)) {
		p.add("tag", Warning, "", "tag %s has a future date, %s: until then it counts as the newest",
			v.Tags[0].Name, v.Tags[0].Created.Format(time.RFC3339))
	}
	taken := v.Refs.Names()
	for _, t := range v.Tags {
		taken = append(taken, t.Name)
	}
	name := Expand(pattern, definition, taken)
	if err := v.Repo.CheckName(ctx, name); err != nil {
		p.add("tag", Fault, "set another name: tag in [submit] of config.toml", "%v", err)
		return nil
	}
	if i := slices.IndexFunc(v.Tags, func(t Tag) bool { return t.Name == name }); i >= 0 {
		why := "is for other content"
		if commit := v.Tags[i].Commit; commit != v.Head.Commit {
			why = "is on commit " + plain.Short(commit)
		} else if i > 0 {
			why = "is older than " + v.Tags[0].Name + ", which the contest uses"
		}
		hint := "tags are never moved: set another name, tag in [submit] of config.toml, or one with a number: " +
			name + "-" + NumberPart
		p.add("tag", Fault, hint, "tag %s exists, and %s", name, why)
		return nil
	}
	if object := v.Refs.Tag(name); object != "" {
		p.add("tag", Fault, "fetch it with git fetch --tags; set another name: tag in [submit] of config.toml",
			"%s already has a tag %s, which is missing here", v.Remote.Name, name)
		return nil
	}
	p.Tag = name
	p.add("tag", OK, "", "%s, new, on %s", name, plain.Short(v.Head.Commit))
	return nil
}

// remote reports the destination and the content of a push.
func (v *Survey) remote(ctx context.Context, p *TagPlan, o Options) error {
	need := Warning
	if o.WillPush {
		need = Todo
	}
	switch {
	case v.Remote == nil && o.AskedName != "":
		names, err := v.Repo.Remotes(ctx)
		p.add("remote", Fault, "git remote -v lists them", "no remote %s; known remotes: %s",
			o.AskedName, cmp.Or(strings.Join(names, ", "), "none"))
		return err
	case v.Remote == nil:
		p.add("remote", need, "git remote add origin URL", "no git remote to push the tag to")
		return nil
	case v.Offline != nil:
		p.add("remote", Warning, "", "%v", v.Offline)
		return nil
	case p.Tag == "":
		return nil
	}
	where := fmt.Sprintf("%s (%s)", v.Remote.Name, strings.Join(v.Remote.URLs, ", "))
	if object := v.Refs.Tag(p.Tag); object != "" && object == p.Object {
		p.Pushed = true
		p.add("remote", OK, "", "%s has tag %s", where, p.Tag)
		return nil
	} else if object != "" {
		p.add("remote", Fault, "set another name: tag in [submit] of config.toml",
			"%s has a different tag %s, which is never overwritten", where, p.Tag)
		return nil
	}
	commits, n, err := v.Repo.Lacking(ctx, v.Head.Commit, v.Refs, 5)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("to %s: tag %s, %s", where, p.Tag, cmp.Or(p.Object, "on "+v.Head.Commit))
	if n == 0 {
		text += "; the commit is already there"
	} else {
		text += fmt.Sprintf("; and %s missing there: %s", plain.Count(n, "commit"), strings.Join(commits, "; "))
	}
	if more := n - len(commits); more > 0 {
		text += fmt.Sprintf("; and %d older ones", more)
	}
	p.add("push", OK, "", "%s", text)
	if o.WillPush {
		return nil
	}
	var failed *git.Error
	if err := v.Repo.Preview(ctx, v.Remote.Name, cmp.Or(p.Object, v.Head.Commit), p.Tag); errors.As(err, &failed) {
		p.add("push", Warning, "", "%s would reject it now: %s", v.Remote.Name, strings.ReplaceAll(failed.Text, "\n", "; "))
	} else if errors.Is(err, git.ErrOffline) {
		p.add("push", Warning, "", "%v", err)
	} else if err != nil {
		return err
	}
	return nil
}

// Make creates the tag of a plan that is not refused; made is false if it exists.
func (v *Survey) Make(ctx context.Context, p *TagPlan) (made bool, err error) {
	if p.Object != "" {
		return false, nil
	}
	p.Object, err = v.Repo.Tag(ctx, p.Tag, v.Head.Commit, p.Note.Message())
	return err == nil, err
}

// Send pushes the tag of a plan; sent is false if the remote has it.
func (v *Survey) Send(ctx context.Context, p *TagPlan) (sent bool, err error) {
	if p.Pushed {
		return false, nil
	}
	err = v.Repo.Push(ctx, v.Remote.Name, p.Tag)
	p.Pushed = err == nil
	return p.Pushed, err
}

// some joins words, shortened to a line.
func some(words []string) string {
	const most = 8
	if n := len(words) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), n)
	}
	return strings.Join(words, ", ")
}
