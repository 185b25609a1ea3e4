package uninstall

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// resources returns the names, or patterns with one "*", of the resources that the device plugin
// serves by its configuration.
func (u *uninstall) resources(ctx context.Context, plugin *appsv1.DaemonSet) ([]string, error) {
	var spec corev1.PodSpec
	if plugin != nil {
		spec = plugin.Spec.Template.Spec
	}
	names, c := cluster.ConfigNames(&spec), config.Builtin()
	files, err := cluster.ConfigFiles(ctx, u.client, u.namespace, names...)
	if err != nil {
		return nil, err
	}
	if read, err := config.Parse(files, config.Uncompiled{}); err == nil {
		c = read
	} else {
		// The daemons use the last good one, which is unknown here.
		u.progress("The configuration of %v is invalid, using the default names of resources: %v", names, err)
	}
	names = nil
	for _, section := range c.Sections() {
		r := &section.Resources
		names = append(names, r.GPU, r.SGPU, r.VCore, r.VMemory, section.Domains.MIGResources())
		for i := range section.RDMA.Resources {
			names = append(names, section.RDMA.Resources[i].Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// shown limits the pods that an error names.
const shown = 10

// checkHolders fails while pods have devices of heddle, unless forced.
func (u *uninstall) checkHolders(ctx context.Context, served []string) error {
	ours := map[string]bool{}
	err := each(ctx, u.client, "", "nodes", "", func(node *corev1.Node) { ours[node.Name] = hasPlugin(node) })
	if err != nil {
		return err
	}
	var holders []string
	err = each(ctx, u.client, "", "pods", "", func(pod *corev1.Pod) {
		if ours[pod.Spec.NodeName] && holds(pod, served) {
			holders = append(holders, pod.Namespace+"/"+pod.Name)
		}
	})
	if err != nil || len(holders) == 0 {
		return err
	}
	if u.force {
		u.progress("continuing although %d pods have devices of heddle: their containers cannot start again", len(holders))
		return nil
	}
	return fmt.Errorf("pods have devices of heddle, and could not start again: %s: delete them first, "+
		"or use --force (the chart's uninstall.force=true)", cli.First(holders, shown, ", "))
}

// holds reports whether a pod that is not over has a share, or any other device.
func holds(pod *corev1.Pod, served []string) bool {
	if cluster.Ended(pod) {
		return false
	}
	if pod.Annotations[wellknown.SGPUBound] != "" {
		return true
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Limits {
			if slices.ContainsFunc(served, func(p string) bool { return wellknown.Match(p, string(name)) }) {
				return true
			}
		}
	}
	return false
}
