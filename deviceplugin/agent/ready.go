package agent

import (
	"slices"
	"strings"
	"time"
)

// Alive says what is wrong if the loop no longer turns.
func (a *Agent) Alive() string {
	if last := time.Unix(0, a.beat.Load()); time.Since(last) > 3*a.Interval {
		return "no round for three intervals"
	}
	return ""
}

// Ready names the resources that the kubelet does not take from us.
func (a *Agent) Ready() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var wrong []string
	for name, s := range a.served {
		switch status := s.plugin.Status(); {
		case status.Registered:
		case status.Owner != "":
			wrong = append(wrong, name+" is served by "+status.Owner)
		case status.Fault != "":
			wrong = append(wrong, name+": "+status.Fault)
		default:
			wrong = append(wrong, name+" is not registered yet")
		}
	}
	if len(a.served) == 0 {
		wrong = append(wrong, "no resource is served yet")
	}
	slices.Sort(wrong)
	return strings.Join(wrong, "; ")
}
