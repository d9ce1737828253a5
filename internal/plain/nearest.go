package plain

import (
	"cmp"
	"slices"
	"strings"
)

// Nearest returns up to three candidates that word may be a misspelling of, nearest first. It ignores case; ties keep
// their order.
func Nearest(word string, candidates []string) []string {
	type match struct {
		candidate string
		distance  int
	}
	w := []rune(strings.ToLower(word))
	var found []match
	for _, c := range candidates {
		r := []rune(strings.ToLower(c))
		limit := (min(len(w), len(r)) + 2) / 3
		if max(len(w), len(r)) > 256 || abs(len(w)-len(r)) > limit {
			continue
		}
		if d := distance(w, r); d <= limit && d < max(len(w), len(r)) {
			found = append(found, match{c, d})
		}
	}
	slices.SortStableFunc(found, func(a, b match) int { return cmp.Compare(a.distance, b.distance) })
	var names []string
	for _, m := range found[:min(len(found), 3)] {
		names = append(names, m.candidate)
	}
	return names
}

func abs(n int) int { return max(n, -n) }

// Edits returns the number of edits that turn a into b: letters changed, added, removed or swapped with a neighbour.
func Edits(a, b string) int { return distance([]rune(a), []rune(b)) }

func distance(a, b []rune) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		row, up, up2 := rows[i%3], rows[(i+2)%3], rows[(i+1)%3]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(up[j]+1, row[j-1]+1, up[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], up2[j-2]+1)
			}
		}
	}
	return rows[len(a)%3][len(b)]
}
