package modal

import "time"

// Hurry makes the sandboxes of jobs save often and end at once.
func (p *Provider) Hurry() { p.exitDelay, p.saveInterval = 0, 500*time.Millisecond }
