package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/checks"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
)

// scheduler is the program that places gangs, and the name of its profile in
// the chart's configuration; schedulerFile is where that is in its ConfigMap.
const (
	scheduler     = "heddle-scheduler"
	schedulerFile = "scheduler.yaml"
	// schedulerPlugin is the name of heddle's plugin in it.
	schedulerPlugin = "Heddle"
)

// maxListed bounds the named pods of one scheduler.
const maxListed = 5

// schedulers are the names by which pods reach heddle-scheduler.
type schedulers struct {
	// names are empty where it does not run.
	names []string
	// guessed explains why the name is a guess.
	guessed error
}

// readSchedulers finds heddle-scheduler and reads its configuration. Without the
// right to, its name is taken to be that of the chart.
func readSchedulers(ctx context.Context, client rest.Interface) (schedulers, error) {
	pod, err := cluster.Pod(ctx, client, scheduler)
	if pod == nil || err != nil {
		return schedulers{}, err
	}
	names, guessed := profilesOf(ctx, client, pod)
	if guessed != nil {
		names = []string{scheduler}
	}
	return schedulers{names: names, guessed: guessed}, nil
}

// profilesOf returns the schedulerNames of the profiles with heddle's plugin.
func profilesOf(ctx context.Context, client rest.Interface, pod *corev1.Pod) ([]string, error) {
	for i := range pod.Spec.Volumes {
		from := pod.Spec.Volumes[i].ConfigMap
		if from == nil {
			continue
		}
		m, err := cluster.Read[corev1.ConfigMap](ctx,
			client.Get().Namespace(pod.Namespace).Resource("configmaps").Name(from.Name),
			"ConfigMap "+pod.Namespace+"/"+from.Name)
		if err != nil {
			return nil, err
		}
		if text, ok := m.Data[schedulerFile]; ok {
			return profiles(text)
		}
	}
	return nil, fmt.Errorf("pod %s/%s has no ConfigMap with %s", pod.Namespace, pod.Name, schedulerFile)
}

// profiles reads a KubeSchedulerConfiguration.
func profiles(text string) ([]string, error) {
	type set struct {
		Enabled []struct {
			Name string `yaml:"name"`
		} `yaml:"enabled"`
	}
	var c struct {
		Profiles []struct {
			SchedulerName string         `yaml:"schedulerName"`
			Plugins       map[string]set `yaml:"plugins"`
		} `yaml:"profiles"`
	}
	if yaml.Unmarshal([]byte(text), &c) != nil {
		return nil, errors.New("invalid KubeSchedulerConfiguration in " + schedulerFile)
	}
	var names []string
	for _, p := range c.Profiles {
		for _, s := range p.Plugins {
			for _, e := range s.Enabled {
				if name := nameOf(p.SchedulerName); e.Name == schedulerPlugin && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no profile has the plugin " + schedulerPlugin)
	}
	return names, nil
}

// nameOf returns a scheduler's name as the API server writes it.
func nameOf(name string) string { return cmp.Or(name, corev1.DefaultSchedulerName) }

// check names the pods of a Node that have GPUs, or shares of them, and were for
// another scheduler than heddle-scheduler, which planned with what they take. It
// is a problem where both have pods on the Node.
func (s schedulers) check(l *checks.List, pods []corev1.Pod, cfg *config.NodeConfig) {
	if len(s.names) == 0 {
		return
	}
	add, count := l.Note, 0
	foreign := map[string][]string{}
	for i := range pods {
		p := &pods[i]
		// Static pods ask no scheduler.
		if cluster.Ended(p) || cluster.IsStatic(p) || !asksForGPUs(p, cfg) {
			continue
		}
		if name := nameOf(p.Spec.SchedulerName); !slices.Contains(s.names, name) {
			foreign[name] = append(foreign[name], p.Namespace+"/"+p.Name)
			count++
		} else {
			add = l.Problem
		}
	}
	if count == 0 {
		return
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(foreign)) {
		list := slices.Sorted(slices.Values(foreign[name]))
		if n := len(list) - maxListed; n > 0 {
			list = append(list[:maxListed], fmt.Sprintf("%d more", n))
		}
		words = append(words, name+": "+strings.Join(list, ", "))
	}
	guess := ""
	if s.guessed != nil {
		guess = fmt.Sprintf(" (its own name is taken to be %s: %v)", scheduler, s.guessed)
	}
	add(scheduler, "Let one scheduler have the GPU nodes: spec.schedulerName: "+s.names[0]+
		", or gpuScheduler.assign=gpu-pods in the chart.",
		"another scheduler bound %s with GPUs here: %s%s", cli.Count(count, "pod"), strings.Join(words, "; "), guess)
}

// asksForGPUs reports whether a pod asks for GPUs, MIG devices or shares.
func asksForGPUs(p *corev1.Pod, cfg *config.NodeConfig) bool {
	mig := cfg.Domains.VendorKey("mig-")
	return slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), func(c corev1.Container) bool {
		for name, n := range c.Resources.Limits {
			text := string(name)
			if !n.IsZero() && (text == cfg.Resources.GPU || text == cfg.Resources.SGPU || strings.HasPrefix(text, mig)) {
				return true
			}
		}
		return false
	})
}
