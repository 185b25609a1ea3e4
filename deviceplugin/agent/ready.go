package agent

import (
	"slices"
	"strings"
	"time"
)

// stuck is how long no round may begin, at least: rounds are short, and a
// machine may be busy.
const stuck = 30 * time.Second

// Alive is what is wrong if the loop no longer runs.
func (a *Agent) Alive() string {
	if last := time.Unix(0, a.beat.Load()); time.Since(last) > max(3*a.Interval, stuck) {
		return "no round for three intervals"
	}
	return ""
}

// Ready names the resources that the kubelet does not take from the plugin.
func (a *Agent) Ready() string {
	running := a.resources.all()
	var wrong []string
	for name, s := range running {
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
	for _, name := range a.resources.wanted(a.now.Load()) {
		switch {
		case running[name] != nil:
		case a.driver.known() && !a.modes.Known():
			wrong = append(wrong, name+" waits until the holders of GPUs are known")
		case a.driver.known():
			wrong = append(wrong, name+" is not served yet")
		default:
			wrong = append(wrong, name+" waits for the driver's CDI spec")
		}
	}
	slices.Sort(wrong)
	return strings.Join(wrong, "; ")
}
