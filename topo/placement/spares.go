package placement

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// Spares returns the idle nodes of a group that are kept for the repair of running gangs: a number, or a percentage
// of the group's nodes rounded up, of the last ones by name.
func Spares(want intstr.IntOrString, nodes int, idle []string) []string {
	n, err := intstr.GetScaledValueFromIntOrPercent(&want, nodes, true)
	if err != nil || n <= 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(idle))
	return sorted[max(0, len(sorted)-n):]
}
