package doctor

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

const (
	// scheduler is the program that places gangs, and the name of its profile in the chart's configuration.
	scheduler = "heddle-scheduler"
	// schedulerFile is that configuration in its ConfigMap, and schedulerPlugin heddle's plugin in it.
	schedulerFile   = "scheduler.yaml"
	schedulerPlugin = "Heddle"
	// maxListed bounds the named pods of one scheduler.
	maxListed = 5
)

// readSchedulers returns the names by which pods reach heddle-scheduler, none where it does not run. Without the
// right to read its configuration it is taken to be the chart's.
func readSchedulers(ctx context.Context, client *cluster.Client) ([]string, error) {
	pod, err := cluster.Pod(ctx, client, scheduler)
	if pod == nil || err != nil {
		return nil, err
	}
	for i := range pod.Spec.Volumes {
		from := pod.Spec.Volumes[i].ConfigMap
		if from == nil {
			continue
		}
		files, err := cluster.ConfigFiles(ctx, client, pod.Namespace, from.Name)
		if names := profiles(files[schedulerFile]); err == nil && len(names) > 0 {
			return names, nil
		}
	}
	return []string{scheduler}, nil
}

// profiles returns the names of the profiles of a KubeSchedulerConfiguration that have heddle's plugin.
func profiles(text []byte) (names []string) {
	var c struct {
		Profiles []struct {
			SchedulerName string
			Plugins       map[string]struct{ Enabled []struct{ Name string } }
		}
	}
	if yaml.Unmarshal(text, &c) != nil {
		return nil
	}
	for _, p := range c.Profiles {
		for _, set := range p.Plugins {
			if slices.Contains(set.Enabled, struct{ Name string }{schedulerPlugin}) {
				names = append(names, nameOf(p.SchedulerName))
				break
			}
		}
	}
	return names
}

// nameOf returns a scheduler's name as the API server writes it.
func nameOf(name string) string { return cmp.Or(name, corev1.DefaultSchedulerName) }

// checkSchedulers names the pods of a Node that have GPUs, or shares of them, and were for another scheduler than
// heddle-scheduler, which planned with what they take. It is a problem where both have pods on the Node.
func checkSchedulers(l *Findings, own []string, pods []corev1.Pod, cfg *config.NodeConfig) {
	if len(own) == 0 {
		return
	}
	add, count := l.note, 0
	foreign := map[string][]string{}
	for i := range pods {
		p := &pods[i]
		// Static pods ask no scheduler.
		if cluster.Ended(p) || cluster.IsStatic(p) || !asksForGPUs(p, cfg) {
			continue
		}
		if name := nameOf(p.Spec.SchedulerName); slices.Contains(own, name) {
			add = l.problem
		} else {
			foreign[name] = append(foreign[name], p.Namespace+"/"+p.Name)
			count++
		}
	}
	if count == 0 {
		return
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(foreign)) {
		words = append(words, name+": "+cli.First(slices.Sorted(slices.Values(foreign[name])), maxListed, ", "))
	}
	add(scheduler, "Let one scheduler have the GPU nodes: spec.schedulerName: "+own[0]+
		", or gpuScheduler.assign=gpu-pods in the chart.",
		"another scheduler bound %s with GPUs here: %s", cli.Count(count, "pod"), strings.Join(words, "; "))
}

// checkTokens names the pods that hold vcore or vmemory and no share of a GPU: the kubelet counts these, and
// containers with shares do not get them.
func checkTokens(l *Findings, pods []corev1.Pod, cfg *config.NodeConfig) {
	for i := range pods {
		p := &pods[i]
		if cluster.Ended(p) {
			continue
		}
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			_, shares := c.Resources.Limits[corev1.ResourceName(cfg.Resources.SGPU)]
			var held []string
			for _, name := range []string{cfg.Resources.VCore, cfg.Resources.VMemory} {
				if n := c.Resources.Limits[corev1.ResourceName(name)]; !n.IsZero() {
					held = append(held, n.String()+" "+name)
				}
			}
			if !shares && len(held) > 0 {
				l.problem("pod "+p.Namespace+"/"+p.Name,
					"Add "+cfg.Resources.SGPU+" to its limits, or remove the others; "+
						"admissionPolicy.incompleteShares=Deny rejects such pods.",
					"container %s holds %s without a GPU: containers with shares do not get them", c.Name, strings.Join(held, " and "))
			}
		}
	}
}

// asksForGPUs reports whether a pod asks for GPUs, MIG devices or shares.
func asksForGPUs(p *corev1.Pod, cfg *config.NodeConfig) bool {
	mig := cfg.Domains.VendorKey("mig-")
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for name, n := range c.Resources.Limits {
			text := string(name)
			if !n.IsZero() && (text == cfg.Resources.GPU || text == cfg.Resources.SGPU || strings.HasPrefix(text, mig)) {
				return true
			}
		}
	}
	return false
}
