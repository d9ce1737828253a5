package remote

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Bill is all that is paid for one job.
type Bill []Charge

// A Charge is one thing that a job is paid for, by the time for which it is held.
type Charge struct {
	For    string        `json:"for"`              // "GPU", "4 cores"
	Hourly float64       `json:"usd_hour"`         // USD; 0 where the price is not known
	Key    string        `json:"key"`              // of the table, where the price is
	Beyond time.Duration `json:"beyond,omitempty"` // how long it is held at most beside the job's own time
	Apart  bool          `json:"apart,omitempty"`  // it is held for Beyond alone, however long the job runs
}

// held is how long it is held at most for a job that runs for ran.
func (c Charge) held(ran time.Duration) time.Duration {
	if c.Apart {
		return c.Beyond
	}
	return ran + c.Beyond
}

// Most is what a job costs at most, in USD, that runs for ran; missing are the table's keys whose prices are not known.
func (b Bill) Most(ran time.Duration) (usd float64, missing []string) {
	for _, c := range b {
		if usd += c.Hourly * c.held(ran).Hours(); c.Hourly == 0 && !slices.Contains(missing, c.Key) {
			missing = append(missing, c.Key)
		}
	}
	return usd, missing
}

// Rate is what a job costs for an hour in which it runs, in USD, as far as prices are known.
func (b Bill) Rate() (usd float64) {
	for _, c := range b {
		if !c.Apart {
			usd += c.Hourly
		}
	}
	return usd
}

// Parts says what makes up Most.
func (b Bill) Parts(ran time.Duration) string {
	var parts []string
	for _, c := range b {
		price := "price not known"
		if c.Hourly > 0 {
			price = fmt.Sprintf("$%.2f", c.Hourly*c.held(ran).Hours())
		}
		parts = append(parts, fmt.Sprintf("%s for %s %s", c.For, c.held(ran).Round(time.Second), price))
	}
	return strings.Join(parts, ", ")
}
