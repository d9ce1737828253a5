# Commands for sandboxes: a function name with its arguments; $1 is the job's id.
volume=/fisub/volume # Modal's volume: a work folder whose jobs run elsewhere
work=/fisub/work     # of the sandbox itself: the work folder of the agent

# The work folder is on the sandbox's own disk, since the volume supports no locks and no links. entry copies the
# results to the volume periodically and at the end. `sync` on the volume makes changes visible to other sandboxes.

# entry runs the agent, which takes the job's key from its copy of job.json; the volume's copy is emptied first. $2 is
# the hash of the program, $3 the seconds to stay after its end, $4 the half seconds between two copies of the results.
entry() {
	dir=$work/jobs/$1 kept=$volume/jobs/$1
	mkdir -p "$dir" "$kept" && ln -sfn $volume/store $work/store && cp "$kept/job.json" "$dir/job.json" &&
		: >"$kept/job.json" && cp $volume/store/"$2" $work/program && chmod 755 $work/program || exit 1
	if [ "$(sha256sum <$work/program | cut -d " " -f 1)" != "$2" ]; then
		echo "the volume held a spoilt program: submit it again" >"$kept/start.log"
		rm -f $volume/store/"$2"
		exit 1
	fi
	# Results that no client has fetched for two weeks.
	find $volume/jobs -mindepth 2 -maxdepth 2 -name job.json -mtime +14 | while read -r f; do rm -rf "${f%/*}"; done
	($work/program agent run "$dir" >"$kept/start.log" 2>&1; : >"$dir/.ended") &
	n=0
	while [ ! -e "$dir/.ended" ]; do
		sleep 0.5
		n=$((n + 1))
		if [ $((n % $4)) = 0 ]; then keep; fi
	done
	keep
	: >"$dir/.kept"
	sleep "$3"
}

keep() {
	for f in agent.json events.jsonl log exit.json; do
		if [ -e "$dir/$f" ]; then cp "$dir/$f" "$kept/.$f" && mv "$kept/.$f" "$kept/$f"; fi
	done
	sync $volume
}

# follow writes the event stream from byte $2 on, as it grows. It ends once the results are on the volume.
follow() {
	dir=$work/jobs/$1
	while [ ! -e "$dir/agent.json" ] && [ ! -e "$dir/exit.json" ]; do
		if [ -e "$dir/.ended" ]; then cat $volume/jobs/"$1"/start.log >&2; exit 4; fi
		sleep 0.1
	done
	$work/program agent tail "$dir" --from "$2" || exit
	while [ ! -e "$dir/.kept" ]; do sleep 0.1; done
}

# saved runs a command for files and makes its changes visible to other sandboxes.
saved() {
	"$@"
	s=$?
	sync $volume
	exit $s
}

"$@"
