package capacity

import (
	"fmt"
	"strings"
)

// maxFaults is how many devices a reason names.
const maxFaults = 4

// tally counts the devices of one resource.
type tally struct {
	name             string
	devices, healthy int
	count            int64
	faults           []string
}

// add counts a device that is worth n, unless something is against it.
func (t *tally) add(device, against string, n int64) {
	t.devices++
	if against != "" {
		t.faults = append(t.faults, device+": "+against)
		return
	}
	t.healthy++
	t.count += n
}

func (t *tally) resource() Resource {
	return Resource{
		Name: t.name, Count: t.count, Devices: t.devices, Healthy: t.healthy, Reason: several(t.faults),
	}
}

// several joins the first faults and counts the others.
func several(faults []string) string {
	if more := len(faults) - maxFaults; more > 1 {
		return fmt.Sprintf("%s; and %d more", strings.Join(faults[:maxFaults], "; "), more)
	}
	return strings.Join(faults, "; ")
}
