// Package drain is `heddle drain`: it keeps new pods from a node, or from single GPUs of
// it, and evicts the pods that have its devices. It deletes no pod, and touches none
// without devices.
package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cli"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/cluster"
	"github.com/heddle-dev/heddle/cmd/heddle/internal/gpu"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/report"
)

// poll is the interval between queries for the remaining pods.
const poll = time.Second

type drain struct {
	node          string
	gpus          []string
	dryRun, force bool
	within        time.Duration

	client *cluster.Client
	c      *cobra.Command
	// noted are the pods that were printed already, by UID.
	noted map[types.UID]string
}

// NewCommand makes `heddle drain`.
func NewCommand() *cobra.Command {
	d := &drain{noted: map[types.UID]string{}}
	var api cluster.Flags
	c := &cobra.Command{
		Use: "drain NODE [GPU...]", Short: "Evict the pods that have devices of a node, or some GPUs",
		Long: `Evict the pods that have devices of a node, or some of its GPUs.

The Node is cordoned first, as by kubectl cordon; if GPUs are given, by index,
UUID or PCI address, only they are, as by heddle gpu cordon. Then pods that have
devices of heddle are evicted by the Eviction API, which respects
PodDisruptionBudgets: a pod that a budget protects is tried again. Unlike
kubectl drain, it leaves pods without devices. Pods of DaemonSets, static pods,
and, unless --force is given, pods without a controller stay too. It waits up to
--timeout for the others, and exits with 1 while pods are left. kubectl uncordon
and heddle gpu uncordon undo the cordon.`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: api.CompleteNodes,
	}
	api.Register(c)
	c.Flags().BoolVar(&d.dryRun, "dry-run", false, "print which pods would be evicted, and change nothing")
	c.Flags().BoolVar(&d.force, "force", false, "evict pods without a controller too: no other comes in their place")
	c.Flags().DurationVar(&d.within, "timeout", 10*time.Minute, "how long to wait for the pods to go")
	c.RunE = func(c *cobra.Command, args []string) error {
		if d.within < time.Second {
			return cli.UsageErrorf(c, "--timeout: %s is less than 1s", d.within)
		}
		client, err := api.Client()
		if err != nil {
			return err
		}
		d.node, d.gpus, d.client, d.c = args[0], args[1:], client, c
		return d.run(c.Context())
	}
	return c
}

func (d *drain) run(ctx context.Context) error {
	var err error
	if d.gpus, err = gpu.Resolve(ctx, d.client, d.node, d.gpus, false); err != nil {
		return err
	}
	found, err := d.holders(ctx)
	if err != nil {
		return err
	}
	if d.dryRun {
		return cli.Write(d.c, table(found)+"Nothing was changed.\n")
	}
	if err := d.cordon(ctx); err != nil {
		return err
	}
	// The API server is asked under ctx: the client rejects what its rate would let through
	// only after a deadline, with another error.
	waiting, cancel := context.WithTimeout(ctx, d.within)
	defer cancel()
	for {
		left := slices.DeleteFunc(slices.Clone(found), func(h holder) bool { return h.kept != "" })
		if len(left) == 0 {
			return d.finish(found)
		}
		if err := d.evict(ctx, left); err != nil {
			return err
		}
		select {
		case <-waiting.Done():
			return d.end(ctx, left)
		case <-time.After(poll):
		}
		if found, err = d.holders(ctx); err != nil {
			return err
		}
	}
}

// end is for pods that are left: after --timeout they are findings, and not when the
// command was interrupted.
func (d *drain) end(ctx context.Context, left []holder) error {
	if ctx.Err() != nil {
		return fmt.Errorf("drain node %s: %w: left are %s", d.node, context.Cause(ctx), names(left))
	}
	if err := cli.Write(d.c, fmt.Sprintf("Not done in %s: left are %s.\n", d.within, names(left))); err != nil {
		return err
	}
	return cli.ErrFindings
}

// holders asks which pods have the devices.
func (d *drain) holders(ctx context.Context) ([]holder, error) {
	there, err := cluster.Report(ctx, d.client, d.node)
	if err != nil {
		return nil, fmt.Errorf(
			"which pods have devices of node %s is not known (kubectl drain evicts all pods): %w", d.node, err)
	}
	pods, err := cluster.Pods(ctx, d.client, d.node)
	if err != nil {
		return nil, err
	}
	return holders(there, pods.Items, d.gpus, d.force), nil
}

// cordon keeps new pods from the GPUs, or from the node.
func (d *drain) cordon(ctx context.Context) error {
	for _, uuid := range d.gpus {
		text, err := gpu.Change(ctx, d.client, d.node, uuid, true)
		if err != nil {
			return err
		}
		if err := cli.Write(d.c, fmt.Sprintf("GPU %s of node %s %s\n", uuid, d.node, text)); err != nil {
			return err
		}
	}
	if len(d.gpus) > 0 {
		return nil
	}
	body := []byte(`{"spec":{"unschedulable":true}}`)
	if err := d.client.Patch(types.MergePatchType).Resource("nodes").Name(d.node).Body(body).Do(ctx).Error(); err != nil {
		return fmt.Errorf("cordon node %s: %w", d.node, err)
	}
	return cli.Write(d.c, "Node "+d.node+" is cordoned: no new pod comes here.\n")
}

// evict tries each pod that is not going yet.
func (d *drain) evict(ctx context.Context, left []holder) error {
	api := apiserver.New(d.client, d.node, slog.New(slog.DiscardHandler))
	for i := range left {
		p := left[i].pod
		if p.DeletionTimestamp != nil {
			continue
		}
		err := api.Evict(ctx, types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, p.UID)
		text := "evicted"
		var status *apierrors.StatusError
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // It was interrupted, which the caller sees too.
		case apierrors.IsTooManyRequests(err) && errors.As(err, &status):
			text = "waits: " + status.ErrStatus.Message
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			continue // It is gone.
		case err != nil:
			return err
		}
		if d.noted[p.UID] == text {
			continue
		}
		d.noted[p.UID] = text
		if err := cli.Write(d.c, left[i].String()+": "+cli.Printable(text)+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// finish prints the pods that are left and kept.
func (d *drain) finish(kept []holder) error {
	of := "devices of node " + d.node
	if len(d.gpus) > 0 {
		of = "GPU " + strings.Join(d.gpus, " or ") + " of node " + d.node
	}
	if len(kept) == 0 {
		return cli.Write(d.c, "No pod has "+of+".\n")
	}
	if err := cli.Write(d.c, "These pods still have "+of+":\n"+table(kept)); err != nil {
		return err
	}
	return cli.ErrFindings
}

func table(all []holder) string {
	if len(all) == 0 {
		return "No pod has them.\n"
	}
	rows := [][]string{{"POD", "DEVICES", "EVICTED"}}
	for i := range all {
		evicted := "yes"
		if all[i].kept != "" {
			evicted = "no: " + all[i].kept
		}
		rows = append(rows, []string{all[i].String(), strings.Join(all[i].devices, " "), evicted})
	}
	return cli.Table(rows)
}

// holder is a pod that has devices which it is to give back.
type holder struct {
	pod *corev1.Pod
	// devices lists the devices that it has, or is about to get: UUIDs of GPUs, names of HCAs,
	// names of resources.
	devices []string
	// kept is the reason why the pod is not evicted; empty if it is.
	kept string
}

func (h *holder) String() string { return h.pod.Namespace + "/" + h.pod.Name }

// holders returns the pods of a node that have one of the GPUs, or, without any, a device of
// heddle. Pods without a controller are kept unless they are forced.
func holders(r *report.Report, pods []corev1.Pod, gpus []string, force bool) []holder {
	var all []holder
	for i := range pods {
		p := &pods[i]
		if cluster.Ended(p) {
			continue
		}
		devices := prepared(r, p, gpus)
		if len(gpus) == 0 && len(devices) == 0 {
			devices = requested(r, p)
		}
		if len(devices) > 0 {
			all = append(all, holder{p, devices, kept(p, force)})
		}
	}
	return all
}

// prepared returns the devices that containers of a pod were given.
func prepared(r *report.Report, p *corev1.Pod, gpus []string) []string {
	var devices []string
	for i := range r.Bindings {
		b := &r.Bindings[i]
		own := b.Pod == p.Name && (b.UID == "" || b.UID == string(p.UID))
		// A binding names the pods that used its claim first: others may have come to use it.
		if b.Namespace != p.Namespace || !own && !slices.Contains(claimsOf(p), b.Claim) {
			continue
		}
		devices = append(devices, b.GPUs...)
		for _, share := range b.Shares {
			devices = append(devices, share.UUID)
		}
		if len(gpus) == 0 {
			devices = append(devices, b.HCAs...)
		}
	}
	if len(gpus) > 0 {
		devices = slices.DeleteFunc(devices, func(id string) bool {
			return !slices.ContainsFunc(gpus, func(uuid string) bool { return isOf(r, id, uuid) })
		})
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}

// claimsOf returns the names of a pod's ResourceClaims.
func claimsOf(p *corev1.Pod) (names []string) {
	for i := range p.Spec.ResourceClaims {
		if name := p.Spec.ResourceClaims[i].ResourceClaimName; name != nil {
			names = append(names, *name)
		}
	}
	return names
}

// isOf reports whether a device is this GPU, or is cut from it.
func isOf(r *report.Report, id, uuid string) bool {
	part, isPart := r.GPUIndices[id]
	whole, isWhole := r.GPUIndices[uuid]
	return id == uuid || machine.PartitionOf(id) == uuid || isPart && isWhole && part == whole
}

// requested returns the resources of heddle that a pod will get devices of.
func requested(r *report.Report, p *corev1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for name := range c.Resources.Limits {
			if slices.ContainsFunc(r.Resources, func(s report.Resource) bool { return s.Name == string(name) }) {
				names = append(names, string(name))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// kept returns why a pod is not evicted, by the rules of kubectl drain.
func kept(p *corev1.Pod, force bool) string {
	owner := metav1.GetControllerOf(p)
	switch {
	case cluster.IsStatic(p):
		return "it is a static pod"
	case owner != nil && owner.Kind == "DaemonSet":
		return "its DaemonSet would make another one here"
	case owner == nil && !force:
		return "no controller would make another one; --force evicts it"
	}
	return ""
}

// names returns the pods as text.
func names(all []holder) string {
	texts := make([]string, 0, len(all))
	for i := range all {
		texts = append(texts, all[i].String())
	}
	return strings.Join(texts, ", ")
}
