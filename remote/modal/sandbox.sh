# Commands for sandboxes: a function name with its arguments; $1 is the job's id. The client sets keep_days.
volume=/fisub/volume # Modal's volume: store/<sha256>, jobs/<job id>/
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
	($work/program agent run "$dir" >"$kept/start.log" 2>&1; : >"$dir/.ended") &
	n=0
	while [ ! -e "$dir/.ended" ]; do
		sleep 0.5
		n=$((n + 1))
		if [ $((n % $4)) = 0 ]; then keep; fi
	done
	keep
	sleep "$3"
}

keep() {
	for f in agent.json events.jsonl log exit.json; do
		if [ -e "$dir/$f" ]; then cp "$dir/$f" "$kept/.$f" && mv "$kept/.$f" "$kept/$f"; fi
	done
	sync $volume
}

# follow writes the event stream from byte $2 on, as it grows.
follow() {
	dir=$work/jobs/$1
	while [ ! -e "$dir/agent.json" ] && [ ! -e "$dir/exit.json" ]; do
		if [ -e "$dir/.ended" ]; then cat $volume/jobs/"$1"/start.log >&2; exit 4; fi
		sleep 0.1
	done
	exec $work/program agent tail "$dir" --from "$2"
}

read_exit() { cat $work/jobs/"$1"/exit.json; }

read_log() { cat $work/jobs/"$1"/log 2>/dev/null || cat $volume/jobs/"$1"/start.log 2>/dev/null || true; }

# lack reads lines "hash size" and writes the hashes of missing files; files that exist are kept for another keep_days.
# It deletes files that no job has used for that long, and old results that no client has fetched.
lack() {
	mkdir -p $volume/store $volume/jobs && cd $volume/store || exit 1
	find . -mindepth 1 -maxdepth 1 -type f -mtime +"$keep_days" -exec rm -f {} +
	{ find . -mindepth 2 -maxdepth 2 -mtime +1; find ../jobs -mindepth 2 -maxdepth 2 -name job.json -mtime +14; } |
		while read -r f; do rm -rf "${f%/*}"; done
	while read -r sum size; do
		if [ -f "$sum" ] && [ "$(stat -c %s "$sum")" = "$size" ]; then touch -c "$sum" || true; else echo "$sum"; fi
	done
}

# put reads a tar archive of job.json and of files named by their hashes, verifies and stores them; $2 is a random name.
# It writes the hashes of files with the wrong content to stdout.
put() {
	set -e
	cd $volume
	new=store/.$2
	mkdir "$new"
	trap 'rm -rf "$new"' EXIT
	tar -x -o -m -f - -C "$new"
	for f in "$new"/*; do
		sum=${f##*/}
		if [ "$sum" = job.json ]; then continue; fi
		set -- "$1" "$2" $(sha256sum "$f")
		if [ "$3" != "$sum" ]; then echo "$sum"; fi
	done >"$new/.wrong"
	if [ -s "$new/.wrong" ]; then cat "$new/.wrong"; exit 3; fi
	mkdir -p "jobs/$1"
	mv -f "$new/job.json" "jobs/$1/job.json"
	for f in "$new"/*; do
		if [ -e "$f" ]; then mv -f "$f" store/; fi
	done
	rm -rf "$new"
	sync $volume
}

# leftovers writes the ids of ended jobs, but no job that is just being submitted.
leftovers() {
	cd $volume/jobs 2>/dev/null || exit 0
	for job in *; do
		if [ -e "$job/exit.json" ] || [ -n "$(find "$job/job.json" -mmin +60 2>/dev/null)" ]; then echo "$job"; fi
	done
}

remove() { rm -rf $volume/jobs/"$1" && sync $volume; }

# The results of a job whose sandbox is gone. kept_events writes the event stream from byte $2 on, counted from 1.
kept_events() {
	cd $volume/jobs/"$1" 2>/dev/null && [ -e events.jsonl ] || exit 0
	tail -c +"$2" events.jsonl
}

kept_exit() { cat $volume/jobs/"$1"/exit.json 2>/dev/null || true; }

kept_log() {
	cd $volume/jobs/"$1" 2>/dev/null || exit 0
	cat log 2>/dev/null || cat start.log 2>/dev/null || true
}

started() { tail -c 400 $volume/jobs/"$1"/start.log 2>/dev/null || true; }

"$@"
