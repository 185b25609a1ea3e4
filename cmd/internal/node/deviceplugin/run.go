package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/api/config"
	"github.com/heddle-dev/heddle/api/machine"
	"github.com/heddle-dev/heddle/api/release"
	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/cmd/internal/program"
	"github.com/heddle-dev/heddle/deviceplugin/agent"
	"github.com/heddle-dev/heddle/deviceplugin/apiserver"
	"github.com/heddle-dev/heddle/deviceplugin/cdi"
	"github.com/heddle-dev/heddle/deviceplugin/kubelet"
	"github.com/heddle-dev/heddle/deviceplugin/report"
	"github.com/heddle-dev/heddle/deviceplugin/resource"
	"github.com/heddle-dev/heddle/deviceplugin/server"
	"github.com/heddle-dev/heddle/discovery/cgroup"
	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/discovery/host"
	"github.com/heddle-dev/heddle/internal/hostfile"
	"github.com/heddle-dev/heddle/internal/httpserve"
	"github.com/heddle-dev/heddle/internal/kube"
)

// lock waits until no other process writes checkpoints, CDI specs and annotations, or
// removes them: a rolling update with gpuDevice.maxSurge starts the next process beside the
// serving one, which ends once the next one's container runs. A force-deleted pod may still
// run as well. It returns nil if there is nothing to clean.
func (o *options) lock(ctx context.Context, log *slog.Logger) (*hostfile.Lock, error) {
	if _, err := os.Stat(o.stateDir); o.cleanup && errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // Taking the lock would make the directory.
	}
	return hostfile.TakeLock(ctx, o.stateDir, log)
}

// Run implements [program.Daemon].
func (o *options) Run(ctx context.Context, log *slog.Logger, _ io.Writer) error {
	lock, err := o.lock(ctx, log)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // It ends while it waits.
	case err != nil:
		return err
	case lock != nil:
		defer func() { _ = lock.Close() }() // The end of the process releases it in any case.
	}
	registry := program.NewRegistry(o.version)
	if !o.cleanup {
		return o.serve(ctx, registry, log)
	}
	if err := o.clean(ctx); err != nil {
		return err
	}
	log.InfoContext(ctx, "files removed, idle", "node", o.NodeName)
	well := func() string { return "" }
	return program.Serve(ctx, log, o.metricsAddress, registry, well, well, nil)
}

// serve wires the daemon and runs it. It fails on an invalid configuration, on an invalid
// machine file and without a machine.
func (o *options) serve(ctx context.Context, registry *prometheus.Registry, log *slog.Logger) error {
	pods := prometheus.NewRegistry()
	configs, err := config.NewWatcher(o.Config, config.Uncompiled{}, log)
	if err != nil {
		return err
	}
	registry.MustRegister(program.ConfigValid(Name, configs))
	api := o.apiServer(log)
	under, before := o.startsUnder(ctx, api, log)
	// A replayed machine has no events.
	if !o.IsReplay() {
		o.Hold = true
		o.Release, o.Before = host.NewRelease(), before
		o.Release.Set(under.Until)
		o.GPUs = host.OpenGPUs(gpu.Options{
			HostRoot: o.HostRoot, DriverRoot: o.DriverRoot, DevRoot: o.DevRoot, SysfsRoot: o.SysfsRoot,
			Hook: o.cdiHook, Features: o.features(), Log: log,
		})
	}
	from, err := o.Open(log)
	if err != nil {
		return err
	}
	// The first list that the kubelet receives must be complete.
	if from.Scan(ctx) == nil {
		return errors.New("the machine cannot be read")
	}
	conn, err := kubelet.Dial(kubelet.PodResourcesSocket(o.kubeletDir))
	if err != nil {
		return fmt.Errorf("reach PodResources: %w", err)
	}
	defer conn.Close()
	options := agent.Options{
		NodeName: o.NodeName, Configs: configs, Source: from,
		Generator: o.generator(), Strategy: resource.Strategy(o.strategy), Features: o.features(),
		Vendors: host.Vendors(), GPUs: o.GPUs.Pollers(), Occupied: o.GPUs, Processes: cgroup.Proc{Root: o.ProcRoot},
		KubeletDir: o.kubeletDir, CDIDir: o.cdiDir, StateDir: o.stateDir, DevRoot: o.DevRoot,
		Release: o.Release, Released: under, API: api,
		Interval: o.Interval, Registerer: registry, PodRegisterer: pods, Log: log,
	}
	options.Withdrawn.Namespace, options.Withdrawn.Name, _ = strings.Cut(o.withdrawn, "/")
	if options.ClaimsDir = o.claimsDir; o.claimsDir != "" {
		if options.Claims, err = o.claimsClient(); err != nil {
			return fmt.Errorf("DRA driver: %w", err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return api.Run(ctx) })
	limits := newLimiter(o, log)
	options.Limiter, options.Hook = limits, limits.host.OwnHook
	a := agent.New(options, conn)
	group.Go(func() error {
		limits.install(ctx)
		return nil
	})
	group.Go(func() error { return configs.Run(ctx) })
	group.Go(func() error { return from.Run(ctx) })
	group.Go(func() error { return a.Run(ctx) })
	restricted := &program.Restricted{
		Metrics: pods, Path: report.Path, Handler: a, Open: !o.authenticate, Auth: o.auth(log),
	}
	group.Go(func() error { return program.Serve(ctx, log, o.metricsAddress, registry, a.Alive, a.Ready, restricted) })
	log.InfoContext(ctx, "started", "version", o.version, "node", o.NodeName, "machine", o.Machine)
	return group.Wait()
}

// claimsClient returns the client of the DRA driver.
func (o *options) claimsClient() (kubernetes.Interface, error) {
	config, err := kube.LoadConfig(o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 200, 400 // The start of a pod asks for each of its claims, and waits.
	config.UserAgent = "heddle-device-plugin/" + o.version
	config.ContentType = runtime.ContentTypeProtobuf // A quarter of the work of JSON, on either side.
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return kubernetes.NewForConfig(config)
}

// nodeTimeout bounds how long a start waits for the Node: the API server may be unavailable.
const nodeTimeout = 3 * time.Second

// startsUnder returns the active release of the GPUs, zero for none, and the machine before
// it. The Node decides; if it cannot be read, the state that an earlier process saved.
func (o *options) startsUnder(
	ctx context.Context, api *apiserver.Client, log *slog.Logger,
) (under release.Request, before *machine.Machine) {
	saved, before, err := agent.LoadRelease(o.stateDir)
	if err != nil {
		log.WarnContext(ctx, "saved release of GPUs ignored", "err", err)
	}
	if saved != nil {
		under = saved.Request
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	if node, err := api.ReadNode(ctx); err == nil {
		// An invalid request is ignored; the agent reports it.
		under, _ = release.Parse(node.Annotations[wellknown.GPURelease])
	}
	if !under.Active(time.Now()) {
		return release.Request{}, nil
	}
	log.InfoContext(ctx, "GPUs are released, starting without a session with their driver", "until", under.Until)
	return under, before
}

func (o *options) features() gpu.Features {
	return gpu.Features{
		GDRCopy: o.gdrcopy, GDS: o.gds, IMEX: o.imex, IMEXByPod: o.imexRequest == imexAnnotation,
	}
}

// generator returns the generator of CDI edits for real GPUs, or for those of a machine file.
func (o *options) generator() gpu.EditsGenerator {
	if o.IsReplay() {
		return gpu.ReplayedEdits{Dir: o.DevRoot, Vendors: host.Vendors()}
	}
	return o.GPUs
}

// auth returns nil without an API server, which apiServer logs, and if no token is needed.
func (o *options) auth(log *slog.Logger) *httpserve.Auth {
	config, err := kube.LoadConfig(o.Kubeconfig)
	if err != nil || !o.authenticate {
		return nil
	}
	// Requests that clients can cause are limited apart from the node's own: a token takes at
	// most three.
	config.QPS, config.Burst = 10, 20
	config.UserAgent = "heddle-device-plugin/" + o.version
	auth, err := httpserve.NewAuth(config, report.Audience, log)
	if err != nil {
		log.Warn("tokens are not admitted", "err", err)
		return nil
	}
	return auth
}

// apiServer returns nil without an API server: devices are served all the same.
func (o *options) apiServer(log *slog.Logger) *apiserver.Client {
	config, err := kube.LoadConfig(o.Kubeconfig)
	if err == nil {
		// A hundred pods may start at once, each with an Event.
		config.QPS, config.Burst = 50, 100
		var client rest.Interface
		if client, err = kube.ClientFor(config, "heddle-device-plugin/"+o.version); err == nil {
			return apiserver.New(client, o.NodeName, log)
		}
	}
	log.Warn("no API server: Events, conditions and hints that respect the pod's environment are off", "err", err)
	return nil
}

// clean removes the plugin's files from the host: CDI specs, sockets, the state directory
// and MPS's shared memory. It also removes the parent of the state directory if that is
// named heddle and empty.
func (o *options) clean(ctx context.Context) error {
	err := errors.Join(cdi.Clear(o.cdiDir), server.RemoveSockets(ctx, o.kubeletDir), removeAll(o.stateDir))
	if o.mpsShmDir != defaultShm {
		err = errors.Join(err, removeAll(o.mpsShmDir))
	}
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	above := filepath.Dir(o.stateDir)
	if filepath.Base(above) != "heddle" {
		return nil
	}
	removed := os.Remove(above)
	if removed == nil || errors.Is(removed, unix.ENOENT) || errors.Is(removed, unix.ENOTEMPTY) || busy(removed) {
		return nil
	}
	return fmt.Errorf("clean up: %w", removed)
}

// removeAll removes a directory and its content. A mount point stays, empty.
func removeAll(dir string) error {
	if err := os.RemoveAll(dir); err != nil && !busy(err) {
		return err
	}
	return nil
}

// busy reports whether a directory cannot be removed because it is a mount point, or in a
// container's read-only root.
func busy(err error) bool { return errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EROFS) }
