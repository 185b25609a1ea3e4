package inventorytest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Limits returns the limits of a container: "60/4" is vcore 60 and vmemory 4 of one shared GPU, "2:60/4"
// of two. An amount that is left out is not requested.
func Limits(text string) corev1.ResourceList {
	count, amounts, several := strings.Cut(text, ":")
	if !several {
		count, amounts = "1", count
	}
	vcore, vmemory, _ := strings.Cut(amounts, "/")
	list := corev1.ResourceList{"nvidia.com/sgpu": resource.MustParse(count)}
	for name, amount := range map[corev1.ResourceName]string{"nvidia.com/vcore": vcore, "nvidia.com/vmemory": vmemory} {
		if amount != "" {
			list[name] = resource.MustParse(amount)
		}
	}
	return list
}

// Sharer returns a container with these [Limits].
func Sharer(name, text string) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: Limits(text)}}
}
