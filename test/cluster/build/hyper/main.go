// Command hyper holds every Kubernetes component the test cluster runs, so that
// their shared packages are compiled, linked and mapped into memory once.
//
// The component is chosen by the name the binary is started under (a symbolic
// link named kubelet runs the kubelet) or, under any other name, by its first argument.
package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	if component(name) == nil && name != "etcd" && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = filepath.Base(os.Args[0])
	}
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	build := component(name)
	if build == nil {
		_, _ = os.Stderr.WriteString("hyper: unknown component " + name + "\n")
		os.Exit(2)
	}
	os.Exit(cli.Run(build()))
}

// component returns the constructor of a component's command, or nil. It returns
// a constructor and not a command because kubectl's reads os.Args when it is built.
func component(name string) func() *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand
	case "kube-controller-manager":
		return kcm.NewControllerManagerCommand
	case "kube-scheduler":
		return func() *cobra.Command { return scheduler.NewSchedulerCommand() }
	case "kubelet":
		return func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }
	case "kubectl":
		return kubectl.NewDefaultKubectlCommand
	default:
		return nil
	}
}
